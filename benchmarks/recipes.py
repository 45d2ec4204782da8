r"""Compare training recipes by the FOVs that they need, on phantoms that they have not seen.

    OMP_NUM_THREADS=1 python benchmarks/recipes.py FOLDER --fovs 12000

The paper's recipe gets all FOVs, the others a third. Along each run, the weights that the model would get are scored on
two other phantoms, by walks to the 26 neighbours of the same examples. F1 is the mean over sizes of objects. Scores at
the end are means over the last third of a run, because F1 jumps. The loss chooses the rates, with another seed on
another phantom. The target of a seed is the paper's score at the end. Results stay in FOLDER, and the same command goes
on where it stopped.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.io.atomic import write_text
from ffn.model.network import weight_shapes
from ffn.training.checkpoint import load_checkpoint
from ffn.training.config import TrainConfig
from ffn.training.loop import make_learner
from ffn.training.plan import Training, TrainingData, ValidationSource
from ffn.training.train import training_job
from ffn.training.validation import ValidationBox, make_validation

MODEL = ModelConfig(depth=3, features=8, fov_size_zyx=(17, 17, 17), deltas_zyx=(5, 5, 5))
NETWORK = "--depth 3 --features 8 --fov-size 17 17 17 --deltas 5 5 5"
PAPER, OTHER_RATES = "--preset dong2019", (1e-3, 3e-3)
RATES = {  # to choose from
    PAPER: (3e-5, 1e-4, 3e-4, 1e-3),
    "--optimizer muon --fov-policy faces --batch-size 4": OTHER_RATES,
    "--optimizer muon --fov-policy faces --batch-size 1": OTHER_RATES,
    "--optimizer muon --fov-policy fixed --batch-size 4": OTHER_RATES,
    "--optimizer adam --fov-policy faces --batch-size 4": OTHER_RATES,
}
RATE_SEED, RATE_FOVS = 0, 5000  # for the paper's recipe; half of that for the others
TRAINED, SCORED, FOR_RATES = "1234", "56", "7"  # phantoms
EXAMPLES, POINTS = 32, 12  # scored per phantom; scores along the paper's run, half as many along the others


def ffn(command: str) -> None:
    """Run a command of this package."""
    subprocess.run([sys.executable, "-m", "ffn", *command.split()], check=True)


def make_data() -> None:
    """Make phantoms and records in the working directory."""
    for n in TRAINED + SCORED + FOR_RATES:
        shape = f"{112 if n in TRAINED else 64} 112 112"
        out = f"--out-image image-{n}.zarr --out-labels labels-{n}.zarr"
        ffn(f"synth --shape {shape} --neurite-radius 30 80 --rng-seed {n} {out}")
    for n in TRAINED:
        ffn(f"partition --labels labels-{n}.zarr --lom-radius 13 13 13 --min-label-um3 0.0005 --out partition-{n}.zarr")
        ffn(f"membrane --image image-{n}.zarr --out membrane-{n}.zarr")
        sources = f"--partitions partition-{n}.zarr --membrane membrane-{n}.zarr"
        ffn(f"coordinates {sources} --margin 13 13 13 --out coordinates-{n}.h5")
    ffn(f"records --coordinates {' '.join(f'{n}=coordinates-{n}.h5' for n in TRAINED)} --out records")


def result(recipe: str, rate: float, seed: int, fovs: int) -> dict[str, Any]:
    """Return scores and processor time of a run; train if there is none."""
    folder = Path(f"{recipe.replace('--', '').replace(' ', '-')}-{rate:g}-{seed}-{fovs}")
    out = folder.with_name(f"{folder}.json")
    if not out.exists():
        points = POINTS if recipe == PAPER and seed != RATE_SEED else POINTS // 2
        steps = fovs // int(recipe.split("batch-size ")[-1]) if recipe != PAPER else fovs
        every, share = -(-steps // points), round(0.05 * steps)
        ours = f"--warmup-steps {share} --schedule cosine --ema-decay {1 - 1 / share}" if recipe != PAPER else ""
        kept = f"--checkpoint-steps {every} --keep-checkpoints {points + 1} --log-steps {every}"
        where = " ".join(f"--volume {n}=image-{n}.zarr,labels-{n}.zarr" for n in TRAINED)
        length = f"--num-workers 1 --precision float32 --max-steps {steps} --learning-rate {rate} --rng-seed {seed}"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ffn(f"train --records records {where} --out {folder} {NETWORK} {recipe} {ours} {kept} {length}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        scored = curve(folder, FOR_RATES if seed == RATE_SEED else SCORED, fovs / steps)
        write_text(out, json.dumps({"seconds": seconds, "curve": scored}))
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def curve(folder: Path, phantoms: str, fovs_per_step: float) -> list[dict[str, float]]:
    """Return the FOVs trained on and the scores of each checkpoint."""
    judge = TrainConfig(num_workers=1, precision="float32", engine="tensorflow", batch_size=16)
    judge = judge.model_copy(update={"validation_examples": EXAMPLES * len(phantoms)})
    box = Box.from_shape((64, 112, 112))
    files = {n: (f"image-{n}.zarr", f"labels-{n}.zarr") for n in TRAINED + phantoms}
    held_out = {n: ValidationSource(*files[n], box) for n in phantoms}
    data = TrainingData("records", {n: files[n] for n in TRAINED}, held_out)
    found = []
    with training_job(Training(data, MODEL, judge, 1)) as (group, plan, opened):
        model = plan.initial.config
        validation = make_validation({n: ValidationBox(opened[n], box) for n in phantoms}, model, judge, 1, group)
        assert validation is not None
        learner = make_learner(model, judge, plan.initial.weights, group)
        for path in sorted(folder.glob("checkpoints/step-*")):
            weights, step = load_checkpoint(path).weights, int(path.name.split("-")[1])
            learner.take_weights(np.concatenate([weights[layer].ravel() for layer in weight_shapes(model)]))
            found.append({**validation.run(learner.forward, step), "fovs": step * fovs_per_step})
    return found


def at_end(run: dict[str, Any], score: str) -> float:
    """Return the mean of a score over the last third of the FOVs."""
    fovs, values = (np.array([point[name] for point in run["curve"]]) for name in ("fovs", score))
    return float(values[fovs > 2 / 3 * fovs[-1]].mean())


def fovs_to(run: dict[str, Any], score: str, target: float) -> float:
    """Return the FOVs from which all scores are at least as good as a target; NaN if the last one is not."""
    sign = -1 if score == "loss" else 1
    good = [*takewhile(lambda point: sign * point[score] >= sign * target, reversed(run["curve"]))]
    return good[-1]["fovs"] if good else np.nan


def main() -> None:
    """Choose the rates, train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fovs", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(given.folder)
    if not Path("records/index.json").exists():
        make_data()
    targets: dict[str, list[float]] = {}
    for recipe, rates in RATES.items():
        rate_fovs, fovs = (RATE_FOVS, given.fovs) if recipe == PAPER else (RATE_FOVS // 2, given.fovs // 3)
        rate = min(rates, key=lambda rate: at_end(result(recipe, rate, RATE_SEED, rate_fovs), "loss"))
        runs = [result(recipe, rate, seed, fovs) for seed in given.seeds]
        scores = {name: [at_end(run, name) for run in runs] for name in ("f1", "precision", "recall", "loss")}
        targets = targets or scores
        print(f"{recipe}, rate {rate:g}: {np.mean([run['seconds'] for run in runs]):.0f} s of a core")
        for name, values in scores.items():
            print(f"  {name} {np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}")
        for name in ("f1", "loss"):
            needed = [fovs_to(run, name, target) for run, target in zip(runs, targets[name], strict=True)]
            print(
                f"  to the paper's {name}, FOVs as a share of its: {', '.join(f'{n / given.fovs:.2f}' for n in needed)}"
            )


if __name__ == "__main__":
    main()
