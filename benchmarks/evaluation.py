"""Compare `ffn evaluate` with scikit-image on volumes with many labels: time, peak memory, equality of the scores.

They run one after the other, each in a separate process, on the same HDF5 files: a ground truth of about `--labels`
cells, and a segmentation that splits and merges some of them. Memory is the peak of the process minus what its imports
take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

SLAB = 64  # sections made at a time


def main() -> None:
    """Run the comparison and print a table; in a child process, measure one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="voxels along every axis (default: 512)")
    parser.add_argument("--labels", type=int, default=100_000, help="approximate number of labels (default: 100000)")
    parser.add_argument("--only", choices=list(METHODS), help="run only this method")
    parser.add_argument("--child", nargs=2, metavar=("METHOD", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(*arguments.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        num_labels = make_volumes(Path(folder), arguments.size, arguments.labels)
        print(f"{arguments.size}³ voxels, {num_labels} labels in the truth")
        print(f"{'':14} {'seconds':>8} {'Mvoxel/s':>9} {'memory, MiB':>12} {'ARE':>9} {'VOI':>9}")
        for method in [arguments.only] if arguments.only else METHODS:
            command = [sys.executable, __file__, "--child", method, folder]
            print(f"{method:14} {row(json.loads(subprocess.check_output(command)), arguments.size)}", flush=True)


def make_volumes(folder: Path, size: int, num_labels: int) -> int:
    """Write a ground truth of sheared columns cut into cells, and a segmentation with splits, mergers and holes."""
    edge = max(2, round((size**3 / num_labels) ** (1 / 3)))
    box = Box.from_shape((size, size, size))
    place = Placement(box, (10.0, 10.0, 10.0))
    y, x = np.indices((size, size), sparse=True)
    per_axis = size // edge + 2
    ids: set[int] = set()
    with (
        create_volume(f"{folder}/truth.h5:labels", np.uint64, place) as truth,
        create_volume(f"{folder}/seg.h5:labels", np.uint64, place) as segmentation,
    ):
        for block in box.blocks((SLAB, size, size)):
            z = np.arange(block.start[0], block.stop[0])[:, None, None]
            wave = (edge // 3 * np.sin(z / 17 + x / 23)).astype(np.int64)
            cells = ((z // edge) * per_axis + (y + wave + edge) // edge) * per_axis + (x + z // 5) // edge + 1
            cells[:, :: edge * 2] = 0
            found = np.where(cells % 7 == 0, cells - 1, cells) * 3 + (cells % 11 == 0) * (x % 2)
            found[cells % 997 == 0] = 0
            truth.write(block, cells.astype(np.uint64))
            segmentation.write(block, found.astype(np.uint64))
            ids.update(np.unique(cells).tolist())
    return len(ids - {0})


def ours(folder: str) -> tuple[float, float]:
    """Score with `ffn evaluate`: all conventions, costs of all bodies, places of the worst errors."""
    from ffn.evaluation.config import EvaluateConfig
    from ffn.evaluation.evaluate import Inputs, evaluate

    out = f"{folder}/scores.json"
    scores = evaluate(Inputs(f"{folder}/seg.h5:labels", f"{folder}/truth.h5:labels"), out, EvaluateConfig())["scores"][
        "all"
    ]
    return scores["are"], scores["voi"]


def scikit_image(folder: str) -> tuple[float, float]:
    """Score with scikit-image: ARE and VOI under one convention."""
    from skimage.metrics import adapted_rand_error, variation_of_information

    with open_volume(f"{folder}/truth.h5:labels") as volume:
        truth = volume.read().astype(np.int64)
    with open_volume(f"{folder}/seg.h5:labels") as volume:
        segmentation = volume.read().astype(np.int64)
    are = adapted_rand_error(truth, segmentation, ignore_labels=(0,))[0]
    return are, float(sum(variation_of_information(truth, segmentation, ignore_labels=(0,))))


METHODS = {"ffn evaluate": ours, "scikit-image": scikit_image}


def measure(method: str, folder: str) -> dict[str, float]:
    """Run one method; return time, memory and scores."""
    import skimage.metrics  # noqa: F401
    from scipy.spatial import KDTree  # noqa: F401

    import ffn.evaluation.evaluate  # noqa: F401

    before = peak_mib()
    start = time.perf_counter()
    are, voi = METHODS[method](folder)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "mib": peak_mib() - before, "are": are, "voi": voi}


def peak_mib() -> float:
    """Return the peak resident memory of this process; getrusage would also count its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def row(result: dict[str, float], size: int) -> str:
    """Return one row of the table."""
    rate = size**3 / result["seconds"] / 1e6
    figures = f"{result['seconds']:8.1f} {rate:9.1f} {result['mib']:12.0f}"
    return f"{figures} {result['are']:9.6f} {result['voi']:9.6f}"


if __name__ == "__main__":
    main()
