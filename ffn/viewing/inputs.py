"""The inputs of an export: volumes and tables."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.assembly.subvolumes import Subvolumes, open_subvolumes
from ffn.contingency import RowLookup
from ffn.errors import ExportError
from ffn.evaluation.errors import worst_of_each_kind
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.blocks import Job
from ffn.io.open import identity, open_segmentation, open_truth, open_volume, read_table
from ffn.io.store_names import jobs_folder
from ffn.io.tables import Tables, read_tables
from ffn.io.training_records import COORDINATES_GROUP
from ffn.io.volume import Converted, Volume
from ffn.viewing import PLAN, STATE_FILE


@contextlib.contextmanager
def open_edges(spec: str) -> Iterator[Volume]:
    """Open membranes with 0 and 255, so that their mips have intermediate shades."""
    with open_volume(spec) as volume:
        yield Converted(volume, lambda voxels: (voxels > 0) * np.uint8(255), np.dtype(np.uint8))


OPENERS = {
    "image": open_volume,
    "segmentation": open_segmentation,
    "truth": open_truth,
    "supervoxels": open_segmentation,
    "edges": open_edges,
}
ERROR_KEYS = {"name", "kind", "position_zyx", "truth_ids", "segment_ids", "voxels"}
ORIGIN_COLUMNS = 6  # id, seed z, y, x, FOVs, pass
GROUP_COLUMNS = [("base_id", np.uint64), ("group_id", np.uint64)]
MAX_POINTS = 100_000  # training coordinates, sampled evenly: a browser takes seconds to load more; our choice
NUM_LINKS = 10  # worst splits, and worst mergers, that get a link; our choice


@dataclass(frozen=True)
class Sources:
    """Inputs of an export. Volumes are ``NAME.zarr``, ``file.h5:dataset`` or URL; None or empty leaves one out."""

    image: str | None = None  # uint8 or uint16
    segmentation: str | None = None
    truth: str | None = None
    supervoxels: str | None = None  # segmentation before agglomeration
    edges: str | None = None  # detected membranes; every value above 0 is one
    probability: tuple[str, ...] = ()  # subvolumes of ffn segment, in stores
    agglomeration: str | None = None  # CSV, base_id,group_id of the supervoxels
    origins: str | None = None  # store with seeds and FOV counts of the supervoxels if given, else of the segmentation
    coordinates: str | None = None  # file of ffn coordinates
    errors: str | None = None  # score file of ffn evaluate

    @property
    def given(self) -> dict[str, str]:
        """Names and specifications of all inputs that are given; of several subvolumes, the first and their number."""
        several = {"probability": f"{self.probability[0]} of {len(self.probability)}"} if self.probability else {}
        return {name: spec for name, spec in vars(self).items() if spec} | several

    @property
    def volumes(self) -> dict[str, str]:
        """Names and specifications of the volumes that are given, but the subvolumes."""
        return {name: spec for name, spec in self.given.items() if name in OPENERS}

    @property
    def contents(self) -> dict[str, str]:
        """Texts that change with the volumes; that of the subvolumes only with their names."""
        names = hashlib.sha256("\n".join(self.probability).encode()).hexdigest()
        return {"probability": names} | {name: identity(spec) for name, spec in self.volumes.items()}


def plan_subvolumes(folder: Path, sources: Sources, key: Mapping[str, Any], job: Job) -> Tables:
    """Return the tables of the subvolumes, which only the first step opens all: there may be a million."""
    if job.is_whole or job.step == PLAN:
        specs = sources.probability
        return Tables(open_subvolumes(specs).tables(specs) if specs else {"contents": np.empty(0, np.uint8)})
    planned = read_tables(jobs_folder(str(folder / STATE_FILE), PLAN), key)
    if planned is None:
        raise ExportError(f"{folder}: has no export of these inputs and options. Run --step {PLAN} first")
    return planned


class Mosaic(Volume):
    """Probabilities of subvolumes as one volume: in overlaps those of the subvolume that the segments are from."""

    def __init__(self, subvolumes: Subvolumes) -> None:
        size = subvolumes.voxel_size_zyx_nm
        super().__init__(subvolumes.specs[0], subvolumes.tiling.hull, np.dtype(np.uint8), size)
        self._subvolumes = subvolumes

    def _read(self, box: Box) -> np.ndarray:
        voxels = np.zeros(box.shape, self.dtype)
        for index, part in self._subvolumes.tiling.cores_in(box):
            with open_volume(f"{self._subvolumes.specs[index]}/probability") as volume:
                voxels[part.slices(box.start)] = volume.read(part)
        return voxels


@contextlib.contextmanager
def open_volumes(sources: Sources, planned: Tables) -> Iterator[Mapping[str, Volume]]:
    """Yield all volumes by their names; `planned` are the tables of the subvolumes."""
    with contextlib.ExitStack() as stack:
        volumes = {name: stack.enter_context(OPENERS[name](spec)) for name, spec in sources.volumes.items()}
        if sources.probability:
            volumes["probability"] = Mosaic(Subvolumes.read(planned, sources.probability))
        yield volumes


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
    points: np.ndarray | None = None  # training coordinates, z, y, x and partition
    errors: list[dict[str, Any]] = field(default_factory=list)  # each gets a link


def tables_of(sources: Sources) -> ExportTables:
    """Read all tables that are given."""
    groups = read_groups(sources.agglomeration) if sources.agglomeration else None
    origins = read_origins(sources.origins) if sources.origins else None
    if groups and not sources.supervoxels:
        raise ExportError("--agglomeration: has the groups of supervoxels, expected --supervoxels, too")
    if groups and origins is not None:
        origins[:, 0] = groups.of(origins[:, 0].astype(np.uint64))
    points = read_coordinates(sources.coordinates) if sources.coordinates else None
    errors = worst_of_each_kind(read_errors(sources.errors), NUM_LINKS) if sources.errors else []
    return ExportTables(origins, groups, points, errors)


def read_origins(spec: str) -> np.ndarray:
    """Read the seeds of objects and their FOV counts."""
    table = read_table(spec, "origins")
    if table is None or table.shape[1:] != (ORIGIN_COLUMNS,):
        raise ExportError(f"{spec}: has no table 'origins', expected a store of ffn segment, reconcile or consensus")
    return table.copy()


def read_groups(path: str) -> Groups:
    """Read an agglomeration: the group of each base id, the last one of those that are repeated."""
    try:
        with open(path) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "loadtxt: input contained no data")  # nothing was joined
            has_header = file.readline().startswith("base_id")
            pairs = np.loadtxt(path, GROUP_COLUMNS, delimiter=",", skiprows=int(has_header), ndmin=1)[::-1]
    except (OSError, ValueError) as reason:
        raise ExportError(f"{path}: cannot be read ({reason}), expected a CSV file of base_id,group_id") from None
    known, rows = np.unique(pairs["base_id"], return_index=True)
    return Groups(known, pairs["group_id"][rows])


def read_coordinates(path: str) -> np.ndarray:
    """Read training coordinates, sampled evenly, with the partition of each: int64 of shape (K, 4)."""
    with hdf5.open_file(path, ExportError) as file:
        if COORDINATES_GROUP not in file:
            raise ExportError(f"{path}: has no coordinates, expected a file of ffn coordinates")
        tables = {int(name): table for name, table in file[COORDINATES_GROUP].items()}
        step = max(1, -(-sum(map(len, tables.values())) // MAX_POINTS))
        found = [np.insert(table[::step].astype(np.int64), 3, name, axis=1) for name, table in sorted(tables.items())]
    return np.concatenate([np.empty((0, 4), np.int64), *found])


def read_errors(path: str) -> list[dict[str, Any]]:
    """Read the worst errors from a score file. Their names become those of files."""
    try:
        errors = json.loads(Path(path).read_text())["errors"]
        is_known = all(
            error.keys() >= ERROR_KEYS and re.fullmatch(r"(split|merge)-\d+", error["name"]) for error in errors
        )
    except OSError as reason:
        raise ExportError(f"{path}: cannot be read ({reason.strerror}). Run ffn evaluate first") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        is_known = False
    if not is_known:
        raise ExportError(f"{path}: has no list of errors, expected scores of this version of ffn evaluate")
    return errors
