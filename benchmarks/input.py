"""Time what training does besides the network: reading, augmentation, walk, batch and score, in ms per FOV.

Measures random patches of the labelled FIB-25 slab if ../shared has it, else of noise of the same size. Instead of the
network's answer, walks get the ground truth plus noise, so they are as long as those of a trained network. All times
are CPU time of one thread. In training, reading and augmentation run in the background, on the same cores. The last
column is the share of a step at --fovs-per-second.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import ZYX, Box, zyx
from ffn.io.create import create_volume
from ffn.io.volume import Placement
from ffn.training.config import TrainConfig
from ffn.training.data.examples import Example, ExampleMaker, patch_size
from ffn.training.data.lanes import Record
from ffn.training.data.volumes import TrainingVolume, open_training_volumes
from ffn.training.lane_walks import LaneWalks
from ffn.training.parallel.process_group import ProcessGroup
from ffn.training.step import Batch, Outcome

SHARED = Path(__file__).parents[2] / "shared/data/fib25"
MODEL = ModelConfig(fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8), image_mean=128, image_stddev=33)
POLICIES: tuple[dict[str, Any], ...] = (
    {"fov_policy": "fixed"},
    {"fov_policy": "fixed_window"},
    {"fov_policy": "max_pred", "fov_moves": 1},
)
DEFECTS: dict[str, Any] = {
    "contrast_jitter": 0.2,
    "brightness_jitter": 0.2,
    "gamma_jitter": 0.2,
    "missing_slice_rate": 0.05,
    "misaligned_slice_rate": 0.05,
    "blur_rate": 0.05,
}
AUGMENTATIONS: dict[str, dict[str, Any]] = {
    "off": {"permutable_axes": (), "reflectable_axes": ()},
    "axes": {},
    "all": DEFECTS,
}
COLUMNS = ("read", "augment", "batch", "walk", "score")


class Clock:
    """CPU time by activity."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, name: str, *without: str) -> Iterator[None]:
        """Count the time of the block, minus the time counted under `without` meanwhile."""
        inner = sum(self.seconds[other] for other in without)
        start = time.thread_time()
        yield
        inside = sum(self.seconds[other] for other in without) - inner
        self.seconds[name] += time.thread_time() - start - inside


class Source:
    """Examples around random voxels of an object, made when they are taken."""

    def __init__(self, volume: TrainingVolume, train: TrainConfig, clock: Clock) -> None:
        self._clock = clock
        self._volume = volume
        self._maker = ExampleMaker({volume.name: _Timed(volume, clock)}, MODEL, train)  # type: ignore[dict-item]
        self._rng = np.random.default_rng(0)
        half = zyx(n // 2 + 1 for n in patch_size(MODEL, train))
        self._inner = volume.box.grow(zyx(-n for n in half))

    def take(self, lane: int) -> Example:
        """Return the next example."""
        with self._clock.measure("choose"):  # training takes centres from records
            center = self._choose()
        with self._clock.measure("augment", "read"):
            return self._maker.make(Record(center, self._volume.name), self._rng)

    def _choose(self) -> ZYX:
        while True:
            center = zyx(self._rng.integers(self._inner.start, self._inner.stop))
            if self._volume.read_labels(Box.from_shape((1, 1, 1), center)).item():
                return center


class _Timed:
    """A training volume whose reads are timed."""

    def __init__(self, volume: TrainingVolume, clock: Clock) -> None:
        self._volume, self._clock = volume, clock
        self.normalisation = volume.normalisation
        self.name, self.box, self.voxel_size_zyx_nm = volume.name, volume.box, volume.voxel_size_zyx_nm

    def read_image(self, box: Box) -> np.ndarray:
        with self._clock.measure("read"):
            return np.array(self._volume.read_image(box))

    def read_labels(self, box: Box) -> np.ndarray:
        with self._clock.measure("read"):
            return np.array(self._volume.read_labels(box))


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", metavar="FILE.h5:DATASET", help="volume to measure; needs --labels")
    parser.add_argument("--labels", metavar="FILE.h5:DATASET", help="its labels")
    parser.add_argument("--steps", type=int, default=200, help="steps per case (default: 200)")
    parser.add_argument("--fovs-per-second", type=float, default=20, help="speed of the network (default: 20)")
    parser.add_argument("--on-demand", action="store_true", help="keep nothing in memory, as if the volume were huge")
    arguments = parser.parse_args()
    if arguments.on_demand:
        from ffn.training.data import volumes

        volumes.PRELOAD_BYTES = 0
    specs = {"volume": (arguments.image, arguments.labels)} if arguments.image else {"volume": find_volume()}
    print(f"{'policy':13} {'augmented':10} {'batch':>5} {'FOVs/walk':>9} ", *(f"{name:>8}" for name in COLUMNS), end="")
    print(f" {'ms/FOV':>8} {'share':>7}")
    with open_training_volumes(specs) as opened:
        (volume,) = opened.values()
        volume.load(ProcessGroup())
        for policy, (name, options), size in itertools.product(POLICIES, AUGMENTATIONS.items(), (1, 4)):
            train = TrainConfig(**policy, **options, batch_size=size)
            row = measure(volume, train, arguments.steps, arguments.fovs_per_second)
            print(f"{train.fov_policy:13} {name:10} {size:5} {row}", flush=True)


def find_volume() -> tuple[str, str]:
    """Return image and labels of FIB-25, or of noise that is written to a temporary folder."""
    image, labels = SHARED / "raw", SHARED / "labels_z000-170.h5"
    if image.exists() and labels.exists():
        return str(image), f"{labels}:stack"
    folder, rng = Path("/tmp/ffn-input-benchmark"), np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    box = Box.from_shape((170, 250, 250))
    blobs = np.kron(rng.integers(0, 60, (10, 10, 10)), np.ones((17, 25, 25), np.int64))
    for name, voxels in (("raw", rng.integers(0, 255, box.shape, np.uint8)), ("labels", blobs.astype(np.uint64))):
        with create_volume(f"{folder}/{name}.h5:{name}", voxels.dtype, Placement(box)) as writer:
            writer.write(box, voxels)
    return f"{folder}/raw.h5:raw", f"{folder}/labels.h5:labels"


def measure(volume: TrainingVolume, train: TrainConfig, steps: int, fovs_per_second: float) -> str:
    """Return one row of the table."""
    clock = Clock()
    source = Source(volume, train, clock)
    walks = LaneWalks(source, dict.fromkeys(range(train.batch_size), 0), MODEL, train)  # type: ignore[arg-type]
    noise = np.random.default_rng(1).normal(0, 2, MODEL.fov_size_zyx).astype(np.float32)
    clock.seconds.clear()
    for _ in range(steps):
        with clock.measure("batch"):
            batch = walks.batch()
        outcome = Outcome(answer(batch, noise), 0.0, True)
        with clock.measure("walk", "choose", "read", "augment", "score"):
            timed_proceed(walks, outcome, clock)
    fovs = steps * train.batch_size
    each = {name: clock.seconds[name] / fovs * 1e3 for name in COLUMNS}
    total = sum(each.values())
    length = fovs / max(1, sum(walks.positions.values()))
    cells = [f"{each[name]:8.3f}" for name in COLUMNS]
    return f"{length:9.1f}  {' '.join(cells)} {total:8.3f} {total * fovs_per_second / 1e3:7.2%}"


def answer(batch: Batch, noise: np.ndarray) -> np.ndarray:
    """Return a map like that of a trained network."""
    return np.where(batch.labels > 0.5, np.float32(4), np.float32(-4)) + noise


def timed_proceed(walks: LaneWalks, outcome: Outcome, clock: Clock) -> None:
    """Proceed, and count the time of the scores separately."""
    for walk in walks._walks.values():
        score = type(walk).score

        def timed(walk: object = walk, score: object = score) -> np.ndarray:
            with clock.measure("score"):
                return score(walk)  # type: ignore[operator]

        walk.score = timed  # type: ignore[method-assign]
    walks.proceed(outcome)


if __name__ == "__main__":
    main()
