"""Describe any file of the pipeline: volumes, arrays, records, models, trainings, scores, exports, runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ffn.errors import EvaluationError
from ffn.geometry import doubt_about_size, extent_um
from ffn.io import hdf5
from ffn.io.atomic import unreadable
from ffn.io.open import open_volume, read_table
from ffn.io.store_names import METADATA, OURS
from ffn.io.volume import HDF5_SUFFIXES, split_spec, volume_in
from ffn.workflow.paths import RunPaths
from ffn.workflow.stages import STAGES

COUNTS = ("box", "segmentation", "covered_fraction", "num_segments", "num_truth")  # of a score file

Description = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe a volume, records, a model, scores, an export or a run.

    example:
      ffn info --json raw.zarr
    """
    parser.add_argument("path", metavar="PATH", help="volume (FILE.h5:DATASET, URL, …), or any file or folder of a run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of YAML")
    parser.add_argument("--tables", action="store_true", help="print all scores, outputs and commands of a run")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    description = describe(arguments.path)
    if arguments.json:
        print(json.dumps(description, indent=1))
    elif description["kind"] == "run":
        from ffn.report.verdict import format_summary, format_verdict

        path = Path(arguments.path)
        print((not arguments.tables and format_verdict(path)) or format_summary(path))
    else:
        print(render(description))


def describe(spec: str) -> Description:
    """Describe a file or folder that a stage reads or writes.

    Parameters
    ----------
    spec : str
        Volume in any form that `ffn.io.open.open_volume` reads, or path of a file or folder.

    Returns
    -------
    dict
        Ready for JSON. `kind` is ``volume``, ``volumes``, ``arrays``, ``records``, ``model``, ``training`` (a model
        folder without a model yet), ``checkpoint``, ``scores``, ``export`` or ``run``. A volume has `shape`, `dtype`,
        `voxel_size` (nm), `extent` (µm), `doubt` about that size, `offset` (all zyx)
        and `provenance`; records have the members of their index; a model has
        `config` and `num_weights`; a trained model and a training have `last` and `best_validation` (step and scores),
        `warnings` and `checkpoints`; a checkpoint has `step` and `fingerprint`.

    Raises
    ------
    FfnError
        If `spec` is missing, damaged or of unknown kind.
    """
    path = Path(spec)
    for is_kind, describe_kind in _KINDS:
        if is_kind(path):
            return {"path": spec, **describe_kind(path)}
    return {"path": spec, **_volume(spec)}


def render(description: Description) -> str:
    """Return a description as YAML."""
    return yaml.safe_dump(description, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120).rstrip()


def _volume(spec: str) -> Description:
    with open_volume(spec) as volume:
        size = volume.voxel_size_zyx_nm
        return {
            "kind": "volume",
            "shape": list(volume.box.shape),
            "dtype": str(volume.dtype),
            "voxel_size": None if size is None else list(size),
            "extent": None if size is None else extent_um(volume.box.shape, size),
            **({"doubt": doubt} if size and (doubt := doubt_about_size(size)) else {}),
            "offset": list(volume.box.start),
            "box": str(volume.box),
            "provenance": volume.provenance,
        }


def _hdf5(path: Path) -> Description:
    """Describe a file by its content: volumes, or other arrays such as coordinates."""
    with hdf5.open_file(path) as file:
        datasets = hdf5.list_datasets(file)
        volumes = {name: f"{path}:{name}" for name, dataset in datasets.items() if len(dataset.shape or ()) == 3}
        tables = {name: _array(dataset) for name, dataset in datasets.items() if name not in volumes}
        attributes = {name: _plain(value) for name, value in file.attrs.items()}
    return _volumes(volumes, tables) if volumes else {"kind": "arrays", "tables": tables, "attributes": attributes}


def _store(path: Path) -> Description:
    """Describe a store of ours."""
    ours = _ours(path)
    read = {name: read_table(path, name) for name in ours["tables"]}
    tables = {name: _array(table) for name, table in read.items() if table is not None}
    return _volumes({name: volume_in(str(path), name) for name in ours["volumes"]}, tables)


def _volumes(specs: dict[str, str], tables: dict[str, str]) -> Description:
    described = {name: _volume(spec) for name, spec in specs.items()}
    if len(described) > 1:
        return {"kind": "volumes", "volumes": described, "tables": tables}
    ((name, volume),) = described.items()
    return {**volume, "name": name, "tables": tables}


def _array(array: Any) -> str:
    return f"{array.shape or ()} {array.dtype}"


def _ours(path: Path) -> Description:
    """Return our part of a store's metadata; empty for any other path."""
    try:
        ours = json.loads((path / METADATA).read_text())["attributes"][OURS] if path.suffix == ".zarr" else {}
    except (OSError, ValueError, LookupError, TypeError):  # opening it says what is wrong
        return {}
    return ours if isinstance(ours, dict) else {}


def _plain(value: Any) -> Any:
    """Convert an attribute for JSON."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _records(folder: Path) -> Description:
    from ffn.io.training_records import load_index

    return {"kind": "records", **load_index(folder).model_dump(mode="json")}


def _model(folder: Path) -> Description:
    from ffn.model.network import num_weights
    from ffn.model.store import load_model

    model = load_model(folder)
    trained = (folder / "metrics.csv").is_file()
    return {
        "kind": "model",
        "num_weights": num_weights(model.config),
        "config": model.config.model_dump(mode="json"),
        **(_progress(folder) if trained else {}),
        "provenance": model.provenance,
    }


def _training(folder: Path) -> Description:
    return {"kind": "training", **_progress(folder)}


def _checkpoint(folder: Path) -> Description:
    from ffn.training.checkpoint import describe_checkpoint

    return {"kind": "checkpoint", **describe_checkpoint(folder)}


def _progress(folder: Path) -> Description:
    """Return the progress and the scores of a training."""
    from ffn.training.metrics import SCORES, best_validation, complaints, read_metrics

    shown = ("step", "epoch", "loss", *SCORES, "learning_rate", "fovs_per_second", "skipped_steps")
    rows, validations = (read_metrics(folder / name) for name in ("metrics.csv", "validation.csv"))
    best = best_validation(validations)
    return {
        "last": {name: row[name] for row in rows[-1:] for name in shown if name in row},
        "warnings": list(complaints(rows, validations).values()),
        "best_validation": {name: best[name] for name in ("step", "loss", *SCORES) if name in best},
        "checkpoints": sorted(path.name for path in (folder / "checkpoints").glob("step-*")),
    }


def _scores(path: Path) -> Description:
    """Return scores and counts, without the lists of errors and bodies."""
    with unreadable(path, "a score file, JSON of 'ffn evaluate'", EvaluationError):
        content = json.loads(path.read_text())
        others = {**content.get("earlier", {}), "baseline": content.get("baseline")}
        return {
            "kind": "scores",
            **{key: content[key] for key in COUNTS if key in content},
            "scores": content["scores"],
            "others": {name: entry["scores"] for name, entry in others.items() if entry},
        }


def _export(folder: Path) -> Description:
    layers = sorted(info.parent for info in folder.glob("*/info"))
    return {"kind": "export", "volumes": {layer.name: _volume(str(layer)) for layer in layers}}


def _run(folder: Path) -> Description:
    paths = RunPaths(folder)
    makers = {stage.outputs[0].path: name for name, stage in STAGES.items()}  # `ingest` also stands for `synth`
    found = {name: len(paths.existing(name)) for name in makers.values()}
    return {
        "kind": "run",
        "stages": {name: count for name, count in found.items() if count},
        "scores": {path.stem: _scores(path) for path in paths.existing("evaluate")},
    }


def _is_hdf5(path: Path) -> bool:
    return path.suffix.lower() in HDF5_SUFFIXES and split_spec(str(path))[1] is None


# Checked in this order: the files in a folder tell what the folder is.
_KINDS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Description]], ...] = (
    (_is_hdf5, _hdf5),
    (lambda path: bool(_ours(path)), _store),
    (lambda path: (path / "index.json").is_file(), _records),
    (lambda path: (path / "model.yaml").is_file(), _model),
    (lambda path: (path / "manifest.json").is_file(), _checkpoint),
    (lambda path: (path / "metrics.csv").is_file(), _training),
    (lambda path: (path / "neuroglancer.json").is_file(), _export),
    (lambda path: path.suffix == ".json" and path.is_file(), _scores),
    (lambda path: path.is_dir() and RunPaths(path).is_run(), _run),
)
