"""Time the network, flood filling and training in JAX, on a GPU if JAX sees one.

Needs JAX, NumPy, h5py, tensorstore, scikit-image, pydantic, PyYAML and tqdm, and this repository on PYTHONPATH.

1. FOVs/s of the network by depth and batch, and which share of the card's rate that is. GFLOP are counted from the
   architecture: 2 x 27 x inputs x outputs x voxels for each convolution, without additions and activations. The rate of
   the card is that of its data sheet for dense bfloat16 matrices; `matmul` is what one large product reaches here. A 3D
   convolution is computed as such (`volumes`) and as one of planes (`planes`).
2. The FIB-25 cube, if there is an imported model (`ffn import-checkpoint`) and the data: flooded as one subvolume, and
   as overlapping ones side by side; seconds, those spent on the device (`advance`, with compiling, and `fetch` of
   objects; the rest is the host's), FOVs/s, and scores against the labels, unfilled. With `--compare`, other engines
   do the same, and the largest difference of a score is printed. `--box` takes a part of the cube, which ends in
   minutes on a CPU.
3. Training steps, if this version trains in JAX.

On a GPU, each network is compiled first, and XLA tries several algorithms, which takes longer than timing it. `--parts`
takes some of the three, and `--json` is written after every line, so that a machine that is lent for minutes is enough.

  python benchmarks/gpu.py --model models/fib25 --data ../shared/data/fib25 --json gpu.json
  JAX_PLATFORMS=cpu python benchmarks/gpu.py --quick --precision float32 --canvases 4 --compare openvino \
      --model models/fib25 --data ../shared/data/fib25 --box 60:100,100:180,100:180                 for a try on a CPU
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ENGINES, ModelConfig, ReconcileConfig, SegmentConfig
from ffn.geometry import Box, tile, zyx
from ffn.machine.jax_device import jax_device
from ffn.model.jax_network import updated_pom
from ffn.model.network import Weights, weight_shapes
from ffn.model.precision import PRECISIONS

# Dense bfloat16 matrices, TFLOP/s, by words in the name of the card; the first that fits counts. Source: NVIDIA's data
# sheets, without sparsity.
CARDS = {
    "B200": 2250,
    "GH200": 989,
    "H200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A40": 150,
    "A30": 165,
    "A10": 125,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PARTS = ("network", "fib25", "training")
OVERLAP = 48  # of the parts of FIB-25, voxels; there are two parts along each axis


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    depths: tuple[int, ...] = (9, 12)
    features: int = 32
    fov: tuple[int, int, int] = (33, 33, 33)
    batches: tuple[int, ...] = BATCHES
    seconds: float = 2.0
    matrix: int = 8192
    training_batches: tuple[int, ...] = (1, 8, 32)

    def model(self, depth: int) -> ModelConfig:
        """Return a network of this size."""
        z, y, x = self.fov
        deltas = z // 4, y // 4, x // 4
        return ModelConfig(depth=depth, features=self.features, fov_size_zyx=self.fov, deltas_zyx=deltas)


QUICK = Size((2, 3), 8, (17, 17, 17), (1, 4), 0.5, 1024, (2,))


def main() -> None:
    """Measure, print, and write JSON if asked to."""
    arguments = parse()
    import jax

    size = QUICK if arguments.quick else Size()
    device = jax_device()
    report: dict[str, Any] = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
    peak = next((rate for name, rate in CARDS.items() if name in device.device_kind), None)
    report["peak_tflops"] = peak
    if device.platform != "gpu":
        print("NO GPU HAS RUN THIS: JAX sees none here, so these are figures of a CPU.")
    print(f"{device.device_kind}, JAX {jax.__version__}, bfloat16 by the data sheet: {peak or 'unknown'} TFLOP/s")
    report["matmul_tflops"] = {name: matmul_tflops(size, name) for name in PRECISIONS}
    print("matmul:", ", ".join(f"{name} {rate:.2f} TFLOP/s" for name, rate in report["matmul_tflops"].items()))
    rows = {
        "network": lambda: network_rates(size, arguments.precision, peak),
        "fib25": lambda: flooded(arguments) if arguments.model and arguments.data else iter(()),
        "training": lambda: training_rates(size, arguments.precision),
    }
    for part in arguments.parts:
        report[part] = []
        for row in rows[part]():
            report[part].append(row)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small networks, few batches")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16", help="of the network")
    parser.add_argument("--model", help="imported weights of FIB-25")
    parser.add_argument("--data", type=Path, help="folder of FIB-25, with raw and labels_z000-170.h5")
    parser.add_argument("--box", type=Box.parse, help="part of FIB-25 to flood (default: all)")
    text = "engines that flood FIB-25, too: openvino, kernels, tensorflow (not on a machine with JAX alone)"
    parser.add_argument("--compare", nargs="+", default=[], choices=ENGINES, metavar="ENGINE", help=text)
    parser.add_argument("--canvases", default="auto", help="subvolumes at once (default: auto)")
    parser.add_argument("--json", help="file to write the figures to")
    return parser.parse_args()


def per_second(work: Callable[[], Any], seconds: float) -> float:
    """Return how often per second `work` is done, in a row; the first call is not timed."""
    import jax

    jax.block_until_ready(work())
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        jax.block_until_ready([work() for _ in range(3)])
        count += 3
    return count / (time.perf_counter() - start)


def matmul_tflops(size: Size, precision: str) -> float:
    """Return the rate of a product of large matrices, TFLOP/s."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((size.matrix, size.matrix), precision)
    product = jax.jit(jnp.matmul)
    return per_second(lambda: product(matrix, matrix), size.seconds) * 2 * size.matrix**3 / 1e12


def network_rates(size: Size, precision: str, peak: float | None) -> Iterator[dict[str, Any]]:
    """Time the network by depth, batch and form of the convolutions."""
    import jax

    header = f"{'depth':>5} {'batch':>5} {'form':8} {'FOVs/s':>9} {'GFLOP/FOV':>9} {'TFLOP/s':>8} {'share':>6}"
    print(header)
    for depth in size.depths:
        config = size.model(depth)
        weights = jax.device_put(noise_weights(config), jax_device())
        for batch in size.batches:
            image, pom = jax.device_put(np.random.default_rng(0).normal(size=(2, batch, *size.fov)).astype(np.float32))
            for form in ("volumes", "planes"):
                call = jax.jit(lambda w, i, p, c=config, f=form: updated_pom(w, i, p, c, precision, f == "planes"))
                try:
                    rate = batch * per_second(partial(call, weights, image, pom), size.seconds)
                except jax.errors.JaxRuntimeError as error:  # a batch that the card does not hold
                    print(f"{depth:5} {batch:5} {form:8} {str(error).splitlines()[0][:80]}")
                    continue
                tflops = rate * flop(config) / 1e12
                share = tflops / peak if peak else None
                shown = f"{share:6.1%}" if share is not None else "     -"
                print(
                    f"{depth:5} {batch:5} {form:8} {rate:9.1f} {flop(config) / 1e9:9.2f} {tflops:8.3f} {shown}",
                    flush=True,
                )
                yield {"depth": depth, "batch": batch, "form": form, "fovs_per_second": rate, "tflops": tflops}


def noise_weights(config: ModelConfig) -> Weights:
    """Return random weights."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in weight_shapes(config).items()}


def flop(config: ModelConfig) -> int:
    """Return the operations of one FOV."""
    kernels = [math.prod(shape) for name, shape in weight_shapes(config).items() if name.endswith("weights")]
    return 2 * sum(kernels) * math.prod(config.fov_size_zyx)


def flooded(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Flood the FIB-25 cube, whole and in overlapping parts, with JAX and then with the engines to compare with."""
    box = arguments.box or whole_box(f"{arguments.data}/raw")
    part = zyx(min(n, (n + OVERLAP + 1) // 2) for n in box.shape)
    with tempfile.TemporaryDirectory() as folder:
        for boxes in ([box], list(tile(box, part, zyx(min(OVERLAP, n - 1) for n in part)))):
            reference: dict[str, float | None] = {}
            for engine in ("jax", *arguments.compare):
                row, scores = flooded_by(engine, boxes, arguments, Path(folder))
                reference = reference or scores
                row |= {"worst_difference": worst_difference(scores, reference), **scores}
                print(f"FIB-25 {box}, {len(boxes)} subvolumes: {json.dumps(row)}", flush=True)
                yield row


def flooded_by(
    engine: str, boxes: list[Box], arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Flood boxes with an engine and join them; return figures, and scores."""
    from ffn.assembly.reconcile import reconcile
    from ffn.inference.device.lanes import DeviceLanes
    from ffn.inference.segment import segment

    options = {"precision": arguments.precision, "canvases": arguments.canvases, "checkpoint_seconds": 0}
    files = [f"{folder}/{engine}-{len(boxes)}-{number}.h5:segmentation" for number in range(len(boxes))]
    start = time.perf_counter()
    with timed(DeviceLanes, "advance", "fetch") as spent:
        segment(f"{arguments.data}/raw", arguments.model, files, SegmentConfig(engine=engine, **options), boxes)
    seconds = time.perf_counter() - start
    num_fovs = sum(map(num_fovs_of, files))
    whole = files[0]
    if len(files) > 1:
        whole = f"{folder}/{engine}.h5:segmentation"
        reconcile(files, whole, ReconcileConfig())
    row = {"engine": engine, "boxes": len(boxes), "seconds": seconds, "fovs": num_fovs}
    row["fovs_per_second"] = num_fovs / seconds
    row |= {f"{name}_seconds": amount for name, amount in spent.items() if amount}
    return row, scored(whole, f"{arguments.data}/labels_z000-170.h5:stack")


@contextlib.contextmanager
def timed(kind: type, *names: str) -> Iterator[dict[str, float]]:
    """Add up the time in methods of a class; the rest of a flood is the host's."""
    spent, methods = dict.fromkeys(names, 0.0), {name: getattr(kind, name) for name in names}

    def measuring(name: str) -> Callable[..., Any]:
        def method(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return methods[name](*arguments)
            finally:
                spent[name] += time.perf_counter() - start

        return method

    for name in names:
        setattr(kind, name, measuring(name))
    try:
        yield spent
    finally:
        for name, method in methods.items():
            setattr(kind, name, method)


def num_fovs_of(segmentation: str) -> int:
    """Return how many FOVs a subvolume took."""
    from ffn.io.open import open_volume

    with open_volume(segmentation) as volume:
        return int(volume.provenance["counters"]["fovs"])


def worst_difference(scores: dict[str, float | None], reference: dict[str, float | None]) -> float:
    """Return the largest difference of two scores, as a share of the reference.

    Examples
    --------
    >>> worst_difference({"are": 0.5, "voi": 2.0, "none": None}, {"are": 0.4, "voi": 2.0, "none": None})
    0.25
    """
    both = [(mine, known) for name, known in reference.items() if known and (mine := scores[name]) is not None]
    return round(max((abs(mine - known) / abs(known) for mine, known in both), default=0.0), 6)


def whole_box(image: str) -> Box:
    """Return the box of a volume."""
    from ffn.io.open import open_volume

    with open_volume(image) as volume:
        return volume.box


def scored(segmentation: str, labels: str) -> dict[str, float | None]:
    """Return the scores where there are labels."""
    from ffn.contingency import count_pairs
    from ffn.evaluation.scores import score
    from ffn.io.open import open_volume

    with open_volume(segmentation) as ours, open_volume(labels) as truth:
        box = ours.box.intersect(truth.box)
        table = count_pairs(truth.read(box), ours.read(box))
    return {f"{kind}_{name}": value for kind in ("foreground", "all") for name, value in score(table, kind).items()}


def training_rates(size: Size, precision: str) -> Iterator[dict[str, Any]]:
    """Time training steps, if there is a learner in JAX."""
    try:
        from ffn.training.choice import step_on_noise
        from ffn.training.config import TrainConfig
    except ImportError:
        print("training: this version does not train in JAX")
        return
    config = size.model(size.depths[0])
    for batch in size.training_batches:
        step = step_on_noise(TrainConfig(batch_size=batch), config, "jax", precision)
        rate = batch * per_second(step, size.seconds)
        print(f"training, depth {config.depth}, batch {batch}: {rate:.1f} FOVs/s", flush=True)
        yield {"depth": config.depth, "batch": batch, "fovs_per_second": rate}


if __name__ == "__main__":
    main()
