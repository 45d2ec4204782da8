"""Read the provenance in the output of a stage, for any kind of file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from ffn.io import hdf5
from ffn.io.faults import unreadable
from ffn.io.store_names import METADATA, OURS

PROVENANCE_FILE = "provenance.json"  # of a folder, next to what a program of others reads

Provenance = dict[str, Any]


def read_provenance(path: str | Path) -> Provenance:
    """Return the provenance of an output of a stage."""
    path = Path(path)
    read = _READERS.get(path.suffix)
    with unreadable(path, "a whole file with its provenance. Delete it and rerun its stage"):
        return read(path) if read else {}


def _of_hdf5(path: Path) -> Provenance:
    with hdf5.open_file(path) as file:
        return json.loads(file.attrs.get("provenance", "{}"))


def _of_store(path: Path) -> Provenance:
    ours = json.loads((path / METADATA).read_text())["attributes"].get(OURS, {})
    return _with_inputs(ours["provenance"], {"box": ours["box"]}) if ours.get("provenance") else {}


def _of_json(path: Path) -> Provenance:
    content = json.loads(path.read_text())
    record = content.get("provenance")
    if record:
        return _with_inputs(record, {name: content[name] for name in ("box", "rng_seed", "weights") if name in content})
    beside = path.parent / PROVENANCE_FILE
    return json.loads(beside.read_text()) if beside.is_file() else {}


def _of_yaml(path: Path) -> Provenance:
    content = yaml.safe_load(path.read_text())
    record = content.get("provenance")
    return {**record, "model": content.get("model", {})} if record else {}


def _of_csv(path: Path) -> Provenance:
    with path.open() as file:
        first = file.readline()
    return json.loads(first[1:]) if first.startswith("#") else {}


def _with_inputs(record: Provenance, said: Provenance) -> Provenance:
    return {**record, "inputs": {**said, **record.get("inputs", {})}}


_READERS: dict[str, Callable[[Path], Provenance]] = {
    ".zarr": _of_store,
    ".h5": _of_hdf5,
    ".json": _of_json,
    ".yaml": _of_yaml,
    ".csv": _of_csv,
}
