"""Read the seed points of a user, from a CSV file or as a single point."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from ffn.errors import ConfigError

HEADER = ["z", "y", "x"]

EXPECTED = "three whole numbers z,y,x of at most 18 digits in full-volume voxels"  # int64 holds any 18 digits

_POINT = re.compile(r"\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*,\s*(-?\d{1,18})\s*")


def read_points(text: str) -> np.ndarray:
    """Read seed points (int64, (N, 3)): a point ``z,y,x``, or a CSV file with this header and a point per line.

    Examples
    --------
    >>> read_points("120,64,30").tolist()
    [[120, 64, 30]]
    """
    single = _POINT.fullmatch(text)
    points = [_whole(single.groups())] if single else _read_csv(Path(text))
    return np.array(points, np.int64).reshape(-1, 3)


def points_file(text: str) -> Path | None:
    """Return the file that `read_points` would read, None for a single point."""
    return None if _POINT.fullmatch(text) else Path(text)


def _read_csv(path: Path) -> list[list[int]]:
    rows = _rows(path)
    header = [name.strip() for name in rows[0]] if rows else []
    if header != HEADER:
        raise ConfigError(f"{path} line 1: found {','.join(header)!r}, expected the header 'z,y,x'")
    points = []
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if (match := _POINT.fullmatch(",".join(row))) is None:
            raise ConfigError(f"{path} line {line}: found {','.join(row)!r}, expected {EXPECTED}")
        points.append(_whole(match.groups()))
    return points


def _rows(path: Path) -> list[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            return list(csv.reader(file))
    except FileNotFoundError:
        raise ConfigError(f"seed points: found {str(path)!r}, expected a CSV file or {EXPECTED}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: cannot be read as CSV ({error}), expected the header 'z,y,x'. Save it as UTF-8 text"
        ) from None


def _whole(words: tuple[str, ...]) -> list[int]:
    return [int(word) for word in words]
