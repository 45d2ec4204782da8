"""Time the network in all engines, float32 and bfloat16, in turn on the same fields of view (FOVs).

Every round runs all engines, so a machine that slows down slows down all of them. Trust the ratio to TensorFlow
float32, which is taken within each round, more than the FOVs/s. FOVs are cut from a synthetic phantom, and their
predicted object map (POM) from its labels, as if half of the object in the middle were known. GFLOP are counted from
the architecture: 2 x 27 x inputs x outputs x voxels for each convolution (1 instead of 27 for the last), including
products with the padding of the borders, without additions and activations. Our kernels need fewer, so their share of
the peak can be more than 100 %. The peak is measured in every round: OpenVINO computes products of 512 x 512 matrices
in the same precision, one chain of them per thread.

The last line gives the time that flood filling takes outside the network (canvas, queue, moves). Its engine thresholds
the image, and the time of the engine is subtracted.

  python benchmarks/inference.py                          depth 9 and 12 with 32 features, untrained weights
  python benchmarks/inference.py --model models/fib25     a trained network, for meaningful logit differences
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ENGINES, ModelConfig, SegmentConfig
from ffn.errors import ConfigError
from ffn.geometry import ZYX, Box
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.engine import Engine, create_engine
from ffn.inference.flood import FloodFill
from ffn.inference.grower import FovBatch
from ffn.inference.seeds import find_seeds
from ffn.model.network import weight_shapes
from ffn.model.precision import PRECISIONS
from ffn.model.store import Model, load_model
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.phantom import Phantom, make_phantom
from ffn.training.initial import initial_weights

MATRIX = 512  # the fastest of 256 to 2048; one thread per chain was faster than all
CHAIN = 128
PHANTOM_SHAPE = (96, 112, 128)


@dataclass(frozen=True)
class Row:
    """Measurements of one engine, in the units of the table's header."""

    depth: int
    batch_size: int
    engine: str
    fovs_per_second: float
    ratio: float
    gflop_per_fov: float
    gflop_per_second: float
    peak_gflop_per_second: float
    share_of_peak: float
    max_difference: float
    mean_difference: float


def main() -> None:
    """Run the comparison, print tables, and write them as JSON with ``--json``."""
    arguments = parse()
    phantom = make_phantom(SynthConfig(shape_zyx=PHANTOM_SHAPE), rng_seed=0)
    peaks = {name: matmul(name, arguments.threads) for name in ("float32", "bfloat16")}
    models = [load_model(arguments.model)] if arguments.model else [untrained(depth) for depth in (12, 9)]
    print(HEADER)
    rows = []
    for model in models:
        for batch_size in arguments.batch:
            for row in compare(model, fovs(phantom, model, arguments.fovs), batch_size, peaks, arguments):
                print(line(row), flush=True)
                rows.append(row)
    outside = milliseconds_outside(phantom, models[0].config)
    print(f"outside the network: {outside:.3f} ms per FOV")
    if arguments.json:
        report: dict[str, Any] = {"machine": machine(arguments.threads), "rows": [asdict(row) for row in rows]}
        report["outside_ms_per_fov"] = outside
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="MODEL_DIR", help="network to measure (default: untrained ones)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="FOVs per call (default: 1 4)")
    parser.add_argument("--fovs", type=int, default=16, help="FOVs per round, a multiple of --batch (default: 16)")
    parser.add_argument("--rounds", type=int, default=3, help="the table has their medians (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="(default: all cores)")
    parser.add_argument("--json", metavar="FILE.json", help="also write all figures to this file")
    arguments = parser.parse_args()
    if any(size < 1 or arguments.fovs % size for size in arguments.batch):
        parser.error(f"--fovs: {arguments.fovs} is not a multiple of each batch size {arguments.batch}")
    return arguments


def untrained(depth: int) -> Model:
    """Make a network with 32 features and FOV 33³ and the weights that training starts from."""
    config = ModelConfig(depth=depth, features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
    return Model(config, initial_weights(config, rng_seed=0), {})


def normalised(phantom: Phantom) -> np.ndarray:
    """Return the image with mean 0 and standard deviation 1, float32."""
    image = phantom.image.astype(np.float32)
    return (image - image.mean()) / image.std()


def fovs(phantom: Phantom, model: Model, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return image and POM (logits) of `num` random FOVs, float32 (num, Z, Y, X)."""
    size = np.array(model.config.fov_size_zyx)
    starts = np.random.default_rng(0).integers(0, np.array(phantom.image.shape) - size + 1, (num, 3))
    boxes = [Box(tuple(start), tuple(start + size)) for start in starts.tolist()]
    image = normalised(phantom)
    labels = [phantom.labels[box.slices()] for box in boxes]
    middle: ZYX = tuple(size // 2)
    known = [each == each[middle] for each in labels]
    for each in known:
        each[..., size[2] // 2 + 1 :] = False
    strong = np.float32(np.log(0.95 / 0.05))
    return np.stack([image[box.slices()] for box in boxes]), np.where(known, strong, -strong).astype(np.float32)


def compare(
    model: Model,
    inputs: tuple[np.ndarray, np.ndarray],
    batch_size: int,
    peaks: dict[str, Callable[[], float]],
    arguments: argparse.Namespace,
) -> list[Row]:
    """Run the engines in turn; return one row for each."""
    engines = engines_here(model, arguments.threads, batch_size)
    answers = [predict_all(engine, inputs, batch_size) for engine in engines]  # also warms up
    rounds = [
        (
            [rate(engine, inputs, batch_size) for engine in engines],
            [peaks[engine.name.split()[1]]() for engine in engines],
        )
        for _ in range(arguments.rounds)
    ]
    rates, limits = np.array(rounds).swapaxes(0, 1)
    work, rows = gflop(model.config), []
    for index, engine in enumerate(engines):
        speed, ratio = np.median(rates[:, index]), np.median(rates[:, index] / rates[:, 0])
        difference = np.abs(answers[index] - answers[0])
        peak, share = np.median(limits[:, index]), np.median(rates[:, index] * work / limits[:, index])
        figures = (speed, ratio, work, speed * work, peak, share)
        differences = (difference.max(), difference.mean())
        rows.append(Row(model.config.depth, batch_size, engine.name, *map(float, (*figures, *differences))))
    return rows


def engines_here(model: Model, threads: int, batch_size: int) -> list[Engine]:
    """Build every engine in every precision that this machine has; the others are compared with the first."""
    engines = []
    for kind in itertools.product(ENGINES, PRECISIONS):
        with contextlib.suppress(ConfigError):  # this machine has no such engine or precision
            engines.append(create_engine(model, *kind, threads, batch_size))
    return engines


def predict_all(engine: Engine, inputs: tuple[np.ndarray, np.ndarray], batch_size: int) -> np.ndarray:
    """Run the engine over all FOVs, batch by batch."""
    image, pom = inputs
    batches = [slice(i, i + batch_size) for i in range(0, len(image), batch_size)]
    return np.concatenate([engine.predict(image[batch], pom[batch]) for batch in batches])


def rate(engine: Engine, inputs: tuple[np.ndarray, np.ndarray], batch_size: int) -> float:
    """Return FOVs/s of one pass over all FOVs."""
    return len(inputs[0]) / seconds(lambda: predict_all(engine, inputs, batch_size))


def gflop(config: ModelConfig) -> float:
    """Count the floating-point operations of one FOV's convolutions, 10⁹."""
    kernels = [np.prod(shape) for name, shape in weight_shapes(config).items() if name.endswith("/weights")]
    return float(2 * sum(kernels) * np.prod(config.fov_size_zyx) / 1e9)


def matmul(precision: str, threads: int) -> Callable[[], float]:
    """Return a function that measures GFLOP/s: each thread multiplies a chain of matrices that fit its cache."""
    import openvino
    from openvino import opset13 as ops

    matrix = np.random.default_rng(0).normal(0, MATRIX**-0.5, (MATRIX, MATRIX)).astype(np.float32)
    start = net = ops.parameter([MATRIX, MATRIX], np.float32)
    for _ in range(CHAIN):
        net = ops.matmul(net, ops.constant(matrix), False, False)
    settings = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(openvino.Model([net], [start], "chain"), "CPU", settings)
    queue = openvino.AsyncInferQueue(compiled, threads)

    def run() -> None:
        for _ in range(threads):
            queue.start_async([matrix])
        queue.wait_all()

    run()
    return lambda: threads * CHAIN * 2 * MATRIX**3 / 1e9 / seconds(run)


class Threshold:
    """Engine that takes bright voxels for the object and measures its own time."""

    name = "threshold"

    def __init__(self) -> None:
        self.seconds = 0.0

    def predict(self, image: np.ndarray, pom_logit: np.ndarray) -> np.ndarray:
        """See `Engine.predict`."""
        begin = time.perf_counter()
        answer = np.where(image > -0.5, np.float32(4), np.float32(-4))
        self.seconds += time.perf_counter() - begin
        return answer


def milliseconds_outside(phantom: Phantom, model: ModelConfig) -> float:
    """Flood-fill the phantom; return the time outside the engine, milliseconds per FOV."""
    image, engine = normalised(phantom), Threshold()
    config = SegmentConfig()
    flood = FloodFill(Canvas(image, model, Thresholds.of(config)), config)
    flood.begin(find_seeds(image, config, (10.0, 10.0, 10.0), Box.from_shape(PHANTOM_SHAPE)))
    wall = seconds(lambda: flood.run(FovBatch(engine, model.fov_size_zyx)))
    return 1000 * (wall - engine.seconds) / flood.num_fovs


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of `work`."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def machine(threads: int) -> dict[str, object]:
    """Describe the machine that the figures were measured on."""
    cpus = [text.split(":", 1)[1].strip() for text in _cpuinfo() if text.startswith("model name")]
    return {"cpu": cpus[0] if cpus else platform.processor(), "threads": threads, "load": os.getloadavg()[0]}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


HEADER = (
    f"{'depth':>5} {'batch':>5} {'engine':20} {'FOVs/s':>7} {'ratio':>6} {'GFLOP/FOV':>9} {'GFLOP/s':>8} "
    f"{'peak':>6} {'share':>6} {'logit difference: max, mean':>28}"
)


def line(row: Row) -> str:
    """Format one row of the table."""
    return (
        f"{row.depth:5} {row.batch_size:5} {row.engine:20} {row.fovs_per_second:7.1f} {row.ratio:6.2f} "
        f"{row.gflop_per_fov:9.2f} {row.gflop_per_second:8.0f} "
        f"{row.peak_gflop_per_second:6.0f} {row.share_of_peak:6.1%} "
        f"{row.max_difference:17.4f}, {row.mean_difference:.5f}"
    )


if __name__ == "__main__":
    main()
