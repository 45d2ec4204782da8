"""The inputs of an export: volumes and tables."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import ExportError
from ffn.evaluation.errors import worst_of_each_kind
from ffn.geometry import Box, zyx
from ffn.io import hdf5
from ffn.io.open import open_segmentation, open_truth, open_volume, read_table
from ffn.io.training_records import COORDINATES_GROUP
from ffn.io.volume import Volume

VOLUMES = ("image", "segmentation", "truth", "supervoxels", "edges")
ERROR_KEYS = {"name", "kind", "position_zyx", "truth_ids", "segment_ids", "voxels"}
ORIGIN_COLUMNS = 6  # id, seed z, y, x, FOVs, pass
MAX_POINTS = 100_000  # training coordinates, sampled evenly: a browser takes seconds to load more; our choice
NUM_LINKS = 10  # worst splits, and worst mergers, that get a link; our choice


@dataclass(frozen=True)
class Sources:
    """Inputs of an export. Volumes are ``NAME.zarr``, ``file.h5:dataset`` or URL; None or empty leaves one out."""

    image: str | None = None  # uint8 or uint16
    segmentation: str | None = None
    truth: str | None = None
    supervoxels: str | None = None  # segmentation before agglomeration
    edges: str | None = None  # detected membranes; every value but 0 is an edge
    probability: tuple[str, ...] = ()  # uint8, 0 was never segmented; those of several subvolumes become one layer
    origins: tuple[str, ...] = ()  # outputs of ffn segment: seeds and FOV counts
    agglomeration: str | None = None  # CSV, base_id,group_id for the ids of `supervoxels` if given, else `segmentation`
    coordinates: str | None = None  # file of ffn coordinates
    errors: str | None = None  # score file of ffn evaluate

    @property
    def given(self) -> dict[str, str]:
        """Names and specifications of all inputs that are given, for the provenance."""
        return {name: _summary(v) if isinstance(v, tuple) else v for name, v in vars(self).items() if v}

    @property
    def specs(self) -> list[str]:
        """Specifications of all inputs: volumes, files, URLs."""
        values = [value if isinstance(value, tuple) else (value,) for value in vars(self).values() if value]
        return [spec for specs in values for spec in specs]

    @property
    def volumes(self) -> dict[str, tuple[str, ...]]:
        """Specifications of each volume, which may consist of several files."""
        named = {name: (getattr(self, name),) for name in VOLUMES if getattr(self, name)}
        return named | ({"probability": self.probability} if self.probability else {})


class Mosaic(Volume):
    """Overlapping subvolumes as one `Volume`: the largest value of any of them, 0 where there is none.

    Files are open only while they are read, because there may be thousands; `bounds`, the start and stop of each (int64
    of shape (N, 2, 3)), spare to open all of them once.
    """

    def __init__(self, specs: Sequence[str], bounds: np.ndarray | None = None) -> None:
        self._specs = specs
        self.bounds = np.array([_bounds(spec) for spec in specs]) if bounds is None else bounds
        box = Box(zyx(self.bounds[:, 0].min(0)), zyx(self.bounds[:, 1].max(0)))
        self._by_z = np.argsort(self.bounds[:, 0, 0])  # so that not every block looks at all of them
        self._starts_z = self.bounds[self._by_z, 0, 0]
        self._longest_z = np.subtract(self.bounds[:, 1, 0], self.bounds[:, 0, 0]).max()
        with open_volume(specs[-1]) as volume:
            super().__init__(_summary(specs), box, volume.dtype, volume.voxel_size_zyx_nm)

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        box = self.box if box is None else box
        out = np.zeros(box.shape, self.dtype)
        first = np.searchsorted(self._starts_z, box.start[0] - self._longest_z, "right")
        near = self._by_z[first : np.searchsorted(self._starts_z, box.stop[0])]
        starts, stops = self.bounds[near, 0], self.bounds[near, 1]
        for index in near[((starts < box.stop) & (stops > box.start)).all(axis=1)].tolist():
            common = Box(*map(zyx, self.bounds[index])).intersect(box)
            with open_volume(self._specs[index]) as volume:
                target = out[common.slices(box.start)]
                np.maximum(target, volume.read(common), out=target)
        return out


def _bounds(spec: str) -> tuple:
    with open_volume(spec) as volume:
        return volume.box.start, volume.box.stop


def _summary(specs: Sequence[str]) -> str:
    """Name the first of several files, and how many others there are."""
    return specs[0] if len(specs) == 1 else f"{specs[0]} and {len(specs) - 1} more"


@contextlib.contextmanager
def open_volumes(sources: Sources, bounds: np.ndarray | None = None) -> Iterator[Mapping[str, Volume]]:
    """Yield all volumes by their names; those of several files, with known `bounds`, become a `Mosaic`."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(_open(name, specs, bounds)) for name, specs in sources.volumes.items()}


def _open(name: str, specs: Sequence[str], bounds: np.ndarray | None) -> contextlib.AbstractContextManager[Volume]:
    if name == "truth":
        return open_truth(specs[0])
    if name in ("segmentation", "supervoxels"):
        return open_segmentation(specs[0])
    return open_volume(specs[0]) if len(specs) == 1 else contextlib.closing(Mosaic(specs, bounds))


class Origins(NamedTuple):
    """Seeds of segments (full-volume voxels), and the number of FOVs evaluated from each."""

    seeds_zyx: np.ndarray
    num_fovs: np.ndarray


class Groups(NamedTuple):
    """The agglomerated group of each base id, by ascending base id (uint64)."""

    base_ids: np.ndarray = np.empty(0, np.uint64)
    group_ids: np.ndarray = np.empty(0, np.uint64)

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Return the group of each id; an id without one is its own group."""
        if not len(self.base_ids):
            return ids
        rows = np.searchsorted(self.base_ids, ids).clip(max=len(self.base_ids) - 1)
        return np.where(self.base_ids[rows] == ids, self.group_ids[rows], ids)


@dataclass(frozen=True)
class ExportTables:
    """Tables that complement the volumes."""

    origins: Origins | None = None  # seeds of the segmentation
    groups: Groups = Groups()  # agglomerated group of each base id
    base: str | None = None  # layer that has the base ids
    points: np.ndarray = field(default_factory=lambda: np.empty((0, 4), np.int64))  # training coordinates, partitions
    errors: list[dict[str, Any]] = field(default_factory=list)  # each gets a link


def tables_of(sources: Sources) -> ExportTables:
    """Read all tables that are given."""
    given = {"points": read_coordinates(sources.coordinates)} if sources.coordinates else {}
    base = "supervoxels" if sources.supervoxels else "segmentation"
    return ExportTables(
        origins=read_origins(sources.origins) if sources.origins else None,
        groups=read_groups(sources.agglomeration) if sources.agglomeration else Groups(),
        base=base if sources.agglomeration else None,
        errors=worst_of_each_kind(read_errors(sources.errors), NUM_LINKS) if sources.errors else [],
        **given,
    )


def read_origins(specs: Sequence[str]) -> Origins:
    """Read seeds and FOV counts of subvolumes."""
    rows = np.concatenate([np.empty((0, ORIGIN_COLUMNS), np.int64), *map(_read_origins, specs)])
    return Origins(rows[:, 1:4], rows[:, 4])


def _read_origins(spec: str) -> np.ndarray:
    table = read_table(spec, "origins")
    if table is None or table.shape[1:] != (ORIGIN_COLUMNS,):
        raise ExportError(f"{spec}: has no table 'origins', expected an output of 'ffn segment'")
    return table


def read_groups(path: str) -> Groups:
    """Read an agglomeration: the group of each base id, the last one of those that are repeated."""
    pairs = array("Q")
    try:
        with open(path, newline="") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if number == 1 and row[:2] == ["base_id", "group_id"]:
                    continue
                if len(row) != 2 or not all(cell.strip().isdecimal() for cell in row):
                    raise ExportError(f"{path}: line {number} is {','.join(row)!r}, expected base_id,group_id")
                pairs.extend((int(row[0]), int(row[1])))
    except (OSError, UnicodeDecodeError, OverflowError) as reason:
        raise ExportError(f"{path}: cannot be read ({reason}), expected a CSV file of base_id,group_id") from None
    base_ids, group_ids = np.array(pairs, np.uint64).reshape(-1, 2)[::-1].T
    known, rows = np.unique(base_ids, return_index=True)
    return Groups(known, group_ids[rows])


def read_coordinates(path: str) -> np.ndarray:
    """Return training coordinates, sampled evenly, with the partition of each: int64 of shape (K, 4)."""
    found = [np.empty((0, 4), np.int64)]
    with hdf5.open_file(path, ExportError) as file:
        if COORDINATES_GROUP not in file:
            raise ExportError(f"{path}: has no coordinates, expected a file of 'ffn coordinates'")
        tables = {int(name): table for name, table in file[COORDINATES_GROUP].items()}
        total = sum(map(len, tables.values()))
        for partition, table in sorted(tables.items()):
            rows = table[:: max(1, -(-total // MAX_POINTS))].astype(np.int64)
            found.append(np.insert(rows, 3, partition, axis=1))
    return np.concatenate(found)


def read_errors(path: str) -> list[dict[str, Any]]:
    """Read the worst errors from a score file."""
    try:
        errors = json.loads(Path(path).read_text())["errors"]
    except OSError as reason:
        raise ExportError(f"{path}: cannot be read ({reason.strerror}). Run ffn evaluate first") from None
    except (ValueError, KeyError, TypeError):
        raise ExportError(f"{path}: has no list of errors, expected scores of this version of ffn evaluate") from None
    for error in errors:
        # The name becomes that of a file.
        if not ERROR_KEYS <= error.keys() or not re.fullmatch(r"(split|merge)-\d+", str(error["name"])):
            raise ExportError(
                f"{path}: has the error {error}, expected {sorted(ERROR_KEYS)} with a name such as split-01. "
                "Run ffn evaluate again"
            )
    return errors
