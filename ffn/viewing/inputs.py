"""The inputs of an export: volumes and tables."""

from __future__ import annotations

import contextlib
import csv
import json
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box, zyx
from ffn.io import hdf5
from ffn.io.open import open_segmentation, open_truth, open_volume, read_table
from ffn.io.store_names import split_store
from ffn.io.training_records import COORDINATES_GROUP
from ffn.io.volume import Volume, file_of
from ffn.viewing.properties import Groups, Origins

VOLUMES = ("image", "segmentation", "truth", "supervoxels", "edges")
ERROR_KEYS = {"name", "kind", "position_zyx", "truth_ids", "segment_ids", "voxels"}
ORIGIN_COLUMNS = 6  # id, seed z, y, x, FOVs, pass


@dataclass(frozen=True)
class Sources:
    """What to export. Volumes are given as ``file.h5:dataset`` or URL; None or empty leaves one out.

    Parameters
    ----------
    image : str, optional
        Raw image, uint8 or uint16.
    segmentation : str, optional
        Segmentation.
    truth : str, optional
        Ground truth.
    supervoxels : str, optional
        Segmentation before agglomeration.
    edges : str, optional
        Detected membranes; every value but 0 is an edge.
    probability : tuple of str
        FFN probabilities, uint8; 0 was never segmented. The files of several subvolumes become one layer.
    origins : tuple of str
        Files of ``ffn segment``: seeds and FOV counts for the segment properties.
    agglomeration : str, optional
        CSV file ``base_id,group_id`` for the ids of `supervoxels` if given, else of `segmentation`.
    coordinates : str, optional
        File of ``ffn coordinates``: positions of training examples.
    errors : str, optional
        Score file of ``ffn evaluate`` with the worst errors.
    """

    image: str | None = None
    segmentation: str | None = None
    truth: str | None = None
    supervoxels: str | None = None
    edges: str | None = None
    probability: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    agglomeration: str | None = None
    coordinates: str | None = None
    errors: str | None = None

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


class Mosaic:
    """Overlapping subvolumes as one `Volume`: the largest value of any of them, 0 where there is none.

    Files are open only while they are read, because there may be thousands.

    Parameters
    ----------
    specs : sequence of str
        The subvolumes.
    places : int64 ndarray of shape (N, 2, 3), optional
        Start and stop of each, if they are known; else all are opened once.

    Attributes
    ----------
    places : ndarray
        The same.
    """

    def __init__(self, specs: Sequence[str], places: np.ndarray | None = None) -> None:
        self.provenance: dict = {}
        self.name = _summary(specs)
        self._specs = specs
        self.places = np.array([_place(spec) for spec in specs]) if places is None else places
        self.box = Box(zyx(self.places[:, 0].min(0)), zyx(self.places[:, 1].max(0)))
        self._by_z = np.argsort(self.places[:, 0, 0])  # so that not every block looks at all of them
        self._starts_z = self.places[self._by_z, 0, 0]
        self._longest_z = np.subtract(self.places[:, 1, 0], self.places[:, 0, 0]).max()
        with open_volume(specs[-1]) as volume:
            self.dtype, self.voxel_size_zyx_nm = volume.dtype, volume.voxel_size_zyx_nm

    def read(self, box: Box | None = None) -> np.ndarray:
        """Return the voxels of `box` (default: all)."""
        box = self.box if box is None else box
        out = np.zeros(box.shape, self.dtype)
        first = np.searchsorted(self._starts_z, box.start[0] - self._longest_z, "right")
        near = self._by_z[first : np.searchsorted(self._starts_z, box.stop[0])]
        starts, stops = self.places[near, 0], self.places[near, 1]
        for index in near[((starts < box.stop) & (stops > box.start)).all(axis=1)].tolist():
            common = Box(*map(zyx, self.places[index])).intersect(box)
            with open_volume(self._specs[index]) as volume:
                target = out[common.slices(box.start)]
                np.maximum(target, volume.read(common), out=target)
        return out

    def close(self) -> None:
        """Do nothing: no file is open."""


def _place(spec: str) -> tuple[ZYX, ZYX]:
    with open_volume(spec) as volume:
        return volume.box.start, volume.box.stop


def _summary(specs: Sequence[str]) -> str:
    """Name the first of several files, and how many others there are."""
    return specs[0] if len(specs) == 1 else f"{specs[0]} and {len(specs) - 1} more"


def open_parts(
    name: str, specs: Sequence[str], places: np.ndarray | None = None
) -> contextlib.AbstractContextManager[Volume]:
    """Return a context manager that opens one of `VOLUMES`; several files become a mosaic."""
    if name == "truth":
        return open_truth(specs[0])
    if name in ("segmentation", "supervoxels"):
        return open_segmentation(specs[0])
    return open_volume(specs[0]) if len(specs) == 1 else contextlib.closing(Mosaic(specs, places))


def read_origins(paths: Sequence[str]) -> Origins:
    """Read seeds and FOV counts of subvolumes.

    Raises
    ------
    ExportError
        If a file has no table ``origins``.
    """
    tables = [_read_origins_table(path) for path in paths]
    rows = np.concatenate([np.empty((0, ORIGIN_COLUMNS), np.int64), *tables])
    return Origins(rows[:, 1:4], rows[:, 4])


def read_groups(path: str) -> Groups:
    """Read an agglomeration: the group of each base id, the last one of those that are repeated.

    Raises
    ------
    ExportError
        If the file cannot be read, or a line is not ``base_id,group_id``.
    """
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


def read_coordinates(path: str, box: Box, max_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Read about `max_points` training coordinates, sampled evenly, and keep those inside a box.

    Returns
    -------
    int64 ndarray of shape (K, 3), uint8 ndarray of shape (K,)
        Full-volume voxels (zyx), and the partition of each.

    Raises
    ------
    ExportError
        If the file has no coordinates.
    """
    points, classes = [np.empty((0, 3), np.int64)], [np.empty(0, np.uint8)]
    with hdf5.open_file(path, ExportError) as file:
        if COORDINATES_GROUP not in file:
            raise ExportError(f"{path}: has no coordinates, expected a file of 'ffn coordinates'")
        tables = {int(name): table for name, table in file[COORDINATES_GROUP].items()}
        total = sum(map(len, tables.values()))
        for partition, table in sorted(tables.items()):
            rows = table[:: max(1, -(-total // max_points))].astype(np.int64)
            inside = box.holds(rows)
            points.append(rows[inside])
            classes.append(np.full(int(inside.sum()), partition, np.uint8))
    return np.concatenate(points), np.concatenate(classes)


def read_errors(path: str) -> list[dict[str, Any]]:
    """Read the worst errors from a score file.

    Raises
    ------
    ExportError
        If the file cannot be read or has no list of errors with names.
    """
    try:
        errors = json.loads(Path(path).read_text())["errors"]
    except OSError as reason:
        raise ExportError(f"{path}: cannot be read ({reason.strerror}). Run ffn evaluate first") from None
    except (ValueError, KeyError, TypeError):
        raise ExportError(f"{path}: has no list of errors, expected scores of this version of ffn evaluate") from None
    for error in errors:
        if not ERROR_KEYS <= error.keys() or not re.fullmatch(r"(split|merge)-\d+", str(error["name"])):
            raise ExportError(
                f"{path}: has the error {error}, expected {sorted(ERROR_KEYS)} with a name such as split-01. "
                "Run ffn evaluate again"
            )
    return errors


def _read_origins_table(spec: str) -> np.ndarray:
    path = file_of(spec)
    if split_store(spec):
        table = read_table(spec, "origins")
        if table is None or table.shape[1:] != (ORIGIN_COLUMNS,):
            raise ExportError(f"{path}: has no table 'origins', expected a volume of 'ffn segment'")
        return table
    with hdf5.open_file(path, ExportError) as file:
        if "origins" not in file or file["origins"].shape[1:] != (ORIGIN_COLUMNS,):
            found = sorted(hdf5.list_datasets(file))
            raise ExportError(f"{path}: has {found} but no table 'origins', expected a file of 'ffn segment'")
        return file["origins"][()]
