"""`ffn round`: train the network of a run on what people have confirmed, and segment again."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from ffn.commands.correct import recorded_run
from ffn.commands.labels import add_confirmed_options
from ffn.commands.queue import queue_inputs
from ffn.commands.run import become_snakemake
from ffn.io import atomic

# Least active fraction that separates partitions, each of which is an equal part of the records. Below 0.1, a fifth or
# more of the body around the centre lies in pieces that nobody has joined: background here (docs/experiments.md).
WHOLE = 0.2
# Of training, besides the options of fine-tuning: the steps are our choice, for minutes on two cores. Half of the rate
# goes half as far in the same direction (docs/experiments.md).
OWN = {"max_steps": 300, "learning_rate": 1.5e-5, "preset": None, "optimizer": "adam", "scaling_rule": "constant"}
OWN |= {"weight_decay": 0, "ema_decay": None, "fov_moves": 1}
OWN |= {"use_best": False, "validation_steps": 0, "checkpoint_steps": None}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Train the network of a run on what people have confirmed of it ('ffn labels'), and segment again: NAME-2.

    Apply the answers first ('ffn correct'). The configuration of the next run is RUN/round.yaml: that of RUN, with
    these labels, 300 steps from the weights of RUN, and the old weights if they are better in its select.box, where it
    has one. What follows RUN goes to Snakemake: -n shows the plan. The same command resumes.

    example:
      ffn round results/demo -n
    """
    add_confirmed_options(parser)
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run with agglomerate.enabled")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="options of Snakemake")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    folder = Path(os.path.abspath(arguments.run_folder))
    become_snakemake(next_round(folder, arguments.volume, arguments.objects), arguments.words)


def next_round(folder: Path, volume: str | None, objects: Sequence[int]) -> Path:
    """Write the labels of a run and the configuration of the next one; return its path."""
    from ffn.io.open import voxel_sizes
    from ffn.training.checkpoint import architecture_of
    from ffn.viewing.queue import write_confirmed
    from ffn.workflow.first_run import FROM_WEIGHTS
    from ffn.workflow.models import Models
    from ffn.workflow.paths import RunPaths
    from ffn.workflow.sources import derived

    inputs, run = queue_inputs(str(folder), volume, ()), recorded_run(folder)
    os.chdir(folder.parents[1])  # which paths of the configuration are relative to
    name, paths, values = inputs.export.name, RunPaths(f"results/{folder.name}"), run.as_written()
    labels, used = folder / f"labels/{name}.zarr", Models(run, paths, False).used
    # measured anew in a small box, they alone raised VOI by half in one of two boxes (docs/experiments.md)
    grey_levels = architecture_of(folder.parents[1] / used).model_dump(include={"image_mean", "image_stddev"})
    train_box, confirmed = write_confirmed(inputs, objects, labels), f"{name}-confirmed"
    equal = derived({}, voxel_sizes(str(labels))[0] or (1.0, 1.0, 1.0))["train"]["permutable_axes"]
    permutable = [axis for axis in run.train.permutable_axes if axis in equal]
    own, separated = values["volumes"][name], run.partition.thresholds
    is_learnt = run.affinities.max_steps and any(each.is_trained_on for each in run.volumes.values())
    affinities = paths.of("learn-affinities") if is_learnt else run.affinities.network
    unlearnt = [{"box": run.select.box}] if run.select.checkpoints > 0 and run.select_volume == name else []
    own |= {"evaluate_box": "none"} if run.volumes[name].has_labels else {}
    for each in values["volumes"].values():  # of other segments
        each["corrections"] = None
    values["volumes"][confirmed] = {
        "image": paths.of("ingest", "image", volume=name),
        "labels": str(labels.relative_to(folder.parents[1])),
        "masks": [*own["masks"], *unlearnt],
        "normalize": own["normalize"],
        "train_box": str(train_box),
        **dict.fromkeys(("validate_box", "segment_box", "evaluate_box"), "none"),
    }
    values |= {
        "run": next_name(folder.name),
        "init": used,
        "model": run.model.model_dump(mode="json", include={"fov_size_zyx", "deltas_zyx"}) | grey_levels,
        "partition": {**values["partition"], "thresholds": [WHOLE, *(n for n in separated if n > WHOLE)]},
        "train": {**values["train"], **FROM_WEIGHTS, **OWN, "permutable_axes": permutable},
        # not by what is confirmed: the old weights have segmented all of it, and always won (docs/experiments.md)
        "select": {**values["select"], "volume": run.select_volume, "checkpoints": min(1, run.select.checkpoints)},
        "coordinates": {"membrane_distance_nm": run.coordinates.membrane_distance_nm},
        # as they are: here, they would learn that all that is 0 is membrane
        "affinities": {"enabled": run.affinities.enabled, "network": affinities, "max_steps": 0},
    }
    path = folder / "round.yaml"
    atomic.write_text(path, yaml.safe_dump(values, sort_keys=False))
    return path


def next_name(name: str) -> str:
    """Return the name of the next run.

    Examples
    --------
    >>> next_name("mine"), next_name("mine-2")
    ('mine-2', 'mine-3')
    """
    stem, _, number = name.rpartition("-")
    return f"{stem}-{int(number) + 1}" if stem and number.isdigit() else f"{name}-2"
