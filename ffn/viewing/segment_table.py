"""Tables of segments for other programs: CSV, and Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from ffn.errors import ExportError
from ffn.io.atomic import atomic_path
from ffn.viewing.properties import ROWS_AT_ONCE, Column
from ffn.viewing.segments import Segments


def require_writers(formats: Collection[str]) -> None:
    """Check that the library of every format is installed, before the export starts.

    Raises
    ------
    ExportError
        If one is not.
    """
    if "parquet" in formats and importlib.util.find_spec("pyarrow") is None:
        raise ExportError(
            "export.formats: has parquet, but pyarrow is not installed. Run: pip install pyarrow, or take csv"
        )


def write_tables(path: Path, formats: Collection[str], segments: Segments, columns: Sequence[Column]) -> None:
    """Write the properties of all segments in those of the formats that are tables.

    Parameters
    ----------
    path : Path
        Without suffix.
    formats : collection of str
        ``csv``, ``parquet`` or both; others are left out.
    segments : Segments
        All segments of a layer, one row each.
    columns : sequence of Column
        Their properties.
    """
    named = {"id": segments.ids} | {column.name: column.values for column in columns}
    for kind, write in (("csv", _write_csv), ("parquet", _write_parquet)):
        if kind in formats:
            with atomic_path(path.with_suffix(f".{kind}")) as temporary:
                write(temporary, named)


def _write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for start in range(0, len(columns["id"]), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            writer.writerows(zip(*(_cells(values[rows]) for values in columns.values()), strict=True))


def _cells(values: np.ndarray) -> list:
    return [f"{value:.6g}" for value in values.tolist()] if values.dtype.kind == "f" else values.tolist()


def _write_parquet(path: Path, columns: dict[str, np.ndarray]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
