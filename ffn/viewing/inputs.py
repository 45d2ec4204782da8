"""The inputs of an export: volumes and tables."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import RowLookup
from ffn.errors import ExportError
from ffn.evaluation.errors import worst_of_each_kind
from ffn.io.faults import unreadable
from ffn.io.open import open_segmentation, open_truth, open_volume, read_table
from ffn.io.volume import Volume

OPENERS = {
    "image": open_volume,
    "segmentation": open_segmentation,
    "truth": open_truth,
    "supervoxels": open_segmentation,
}
ORIGIN_COLUMNS = 6  # id, seed z, y, x, FOVs, pass
GROUP_COLUMNS = [("base_id", np.uint64), ("group_id", np.uint64)]
NUM_LINKS = 10  # worst splits, and worst mergers, that get a link; our choice


@dataclass(frozen=True)
class Sources:
    """Inputs of an export. Volumes are ``NAME.zarr``, ``file.h5:dataset`` or URL; None or empty leaves one out."""

    image: str | None = None  # uint8 or uint16
    segmentation: str | None = None
    truth: str | None = None
    supervoxels: str | None = None  # segmentation before agglomeration
    agglomeration: str | None = None  # CSV, base_id,group_id of the supervoxels
    origins: str | None = None  # store with seeds and FOV counts of the supervoxels if given, else of the segmentation
    errors: str | None = None  # score file of ffn evaluate

    @property
    def given(self) -> dict[str, str]:
        """Names and specifications of all inputs that are given."""
        return {name: spec for name, spec in vars(self).items() if spec}

    @property
    def volumes(self) -> dict[str, str]:
        """Names and specifications of the volumes that are given."""
        return {name: spec for name, spec in self.given.items() if name in OPENERS}


@contextlib.contextmanager
def open_volumes(sources: Sources) -> Iterator[Mapping[str, Volume]]:
    """Yield all volumes by their names."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(OPENERS[name](spec)) for name, spec in sources.volumes.items()}


class Groups(NamedTuple):
    """The agglomerated group of each base id, by ascending base id (uint64)."""

    base_ids: np.ndarray
    group_ids: np.ndarray

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the group of each id; an id without one is its own group."""
        groups, rows = ids.copy(), RowLookup(self.base_ids).find(ids)
        groups[rows >= 0] = self.group_ids[rows[rows >= 0]]
        return groups


@dataclass(frozen=True)
class ExportTables:
    """Tables that complement the volumes."""

    origins: np.ndarray | None = None  # `ORIGIN_COLUMNS` of each part of an object of the segmentation
    groups: Groups | None = None  # of the supervoxels
    errors: list[dict[str, Any]] = field(default_factory=list)  # each gets a link


def tables_of(sources: Sources) -> ExportTables:
    """Read all tables that are given."""
    groups = read_groups(sources.agglomeration) if sources.agglomeration else None
    origins = read_origins(sources.origins) if sources.origins else None
    if groups and origins is not None:
        origins[:, 0] = groups.of(origins[:, 0].astype(np.uint64))
    errors = read_errors(sources.errors) if sources.errors else []
    return ExportTables(origins, groups, errors)


def read_origins(spec: str) -> np.ndarray:
    """Read the seeds of objects and their FOV counts."""
    table = read_table(spec, "origins")
    if table is None or table.shape[1:] != (ORIGIN_COLUMNS,):
        raise ExportError(f"{spec}: has no table 'origins', expected a store of ffn segment, reconcile or consensus")
    return table.copy()


def read_groups(path: str) -> Groups:
    """Read an agglomeration: the group of each base id, the last one of those that are repeated."""
    expected = "a CSV file of base_id,group_id"
    with unreadable(path, expected, ExportError), open(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")  # nothing was joined
        has_header = file.readline().startswith("base_id")
        pairs = np.loadtxt(path, GROUP_COLUMNS, delimiter=",", skiprows=int(has_header), ndmin=1)[::-1]
    known, rows = np.unique(pairs["base_id"], return_index=True)
    return Groups(known, pairs["group_id"][rows])


def read_errors(path: str) -> list[dict[str, Any]]:
    """Read the worst errors from a score file."""
    with unreadable(path, "scores of this version of ffn evaluate. Run it first", ExportError):
        return worst_of_each_kind(json.loads(Path(path).read_text())["errors"], NUM_LINKS)
