"""Train the same network in float32 and in bfloat16 on a finished run's records, in turn, with several seeds.

The question is whether bfloat16 costs quality: both should reach the same F1 after the same number of steps. Initial
weights and order of examples follow from the seed, so the two precisions of one seed have the same ones. F1 is that of
the training examples since the previous row, smoothed over the rows with factor 0.9 as in the paper.

  python benchmarks/precision.py results/demo --steps 1500 --seeds 1 2 3

Needs the run's stages up to `records`: snakemake --profile profiles/local records_all
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml

from ffn.options import flags
from ffn.training.monitoring.metrics import read_metrics, smoothed
from ffn.workflow.run import RunConfig, load_run

PRECISIONS = ("float32", "bfloat16")
ROWS = 10  # of the printed table


def main() -> None:
    """Train all networks, and print the curves side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="such as results/demo")
    parser.add_argument("--steps", type=int, default=1500, help="steps per training (default: 1500)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="random seeds (default: 1 2 3)")
    parser.add_argument("--log-steps", type=int, default=25, help="steps between two points of a curve (default: 25)")
    arguments = parser.parse_args()
    config = load_run(yaml.safe_load((arguments.run / "config.yaml").read_text()))
    with tempfile.TemporaryDirectory() as folder:
        curves: dict[str, list[dict[str, np.ndarray]]] = {precision: [] for precision in PRECISIONS}
        for seed in arguments.seeds:
            for precision in PRECISIONS:
                out = Path(folder) / f"{precision}-{seed}"
                train(arguments, config, precision, seed, out)
                curves[precision].append(read_curve(out))
                print(f"seed {seed} {precision}: F1 {curves[precision][-1]['f1'][-1]:.4f}", file=sys.stderr)
    report(curves)


def train(arguments: argparse.Namespace, config: RunConfig, precision: str, seed: int, out: Path) -> None:
    """Train one network in one process, with all workers of the run as virtual workers."""
    options = config.train.model_copy(
        update={
            "num_workers": 1,
            "virtual_workers": config.train.num_workers * config.train.virtual_workers,
            "precision": precision,
            "max_steps": arguments.steps,
            "log_steps": arguments.log_steps,
            "checkpoint_steps": arguments.steps,
            "image_steps": 0,
            "validation_steps": 0,
            "use_best": False,
            "horovod_timeline": None,
        }
    )
    volumes = " ".join(
        f"--volume {name}={arguments.run}/volumes/{name}/raw.zarr,{arguments.run}/volumes/{name}/labels.zarr"
        for name, volume in config.volumes.items()
        if volume.is_trained_on
    )
    command = (
        f"{sys.executable} -m ffn train --records {arguments.run}/records {volumes} {flags(config.model)} "
        f"{flags(options)} --rng-seed {seed} --out {out}"
    )
    subprocess.run(shlex.split(command), check=True, stderr=subprocess.DEVNULL)


def read_curve(out: Path) -> dict[str, np.ndarray]:
    """Return steps, smoothed F1, smoothed loss and FOVs/s of a training."""
    rows = read_metrics(out / "metrics.csv")
    curve = {name: np.array([row[name] for row in rows]) for name in ("step", "f1", "loss", "fovs_per_second")}
    return {**curve, "f1": np.asarray(smoothed(curve["f1"])), "loss": np.asarray(smoothed(curve["loss"]))}


def report(curves: dict[str, list[dict[str, np.ndarray]]]) -> None:
    """Print mean and standard deviation of both precisions at the same steps, and the speeds."""
    steps = curves[PRECISIONS[0]][0]["step"]
    shown = np.unique(np.linspace(0, len(steps) - 1, ROWS + 1).astype(int)[1:])
    print(f"{'step':>8} " + " ".join(f"{f'F1 {precision}':>20}" for precision in PRECISIONS) + "   difference ± s.e.")
    for row in shown:
        f1 = {precision: np.array([curve["f1"][row] for curve in curves[precision]]) for precision in PRECISIONS}
        pairs = f1[PRECISIONS[1]] - f1[PRECISIONS[0]]
        error = deviation(pairs) / np.sqrt(len(pairs))
        cells = " ".join(f"{values.mean():>12.4f} ± {deviation(values):.3f}" for values in f1.values())
        print(f"{steps[row]:>8.0f} {cells}   {pairs.mean():+.4f} ± {error:.4f}")
    for precision in PRECISIONS:
        speed = np.median(np.concatenate([curve["fovs_per_second"] for curve in curves[precision]]))
        print(
            f"{precision}: {speed:.1f} FOVs/s (median), final loss "
            f"{np.mean([curve['loss'][-1] for curve in curves[precision]]):.4f}"
        )


def deviation(values: np.ndarray) -> float:
    """Return the sample standard deviation; NaN for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else float("nan")


if __name__ == "__main__":
    main()
