"""Image format and order of slices by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from ffn.errors import VolumeError

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".tif": "TIFF", ".tiff": "TIFF"}

_NUMBER = re.compile(r"(\d+)")


def image_format(path: Path) -> str:
    """Return ``PNG``, ``JPEG`` or ``TIFF`` by the suffix, an empty text for other files."""
    return FORMATS.get(path.suffix.lower(), "")


def natural_key(path: Path) -> tuple[list[str | int], str]:
    """Return the sort key that puts ``slice2`` before ``slice10``.

    Examples
    --------
    >>> [p.name for p in sorted([Path("s10.png"), Path("s2.png")], key=natural_key)]
    ['s2.png', 's10.png']
    """
    parts = _NUMBER.split(str(path))
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], str(path)


def require_series(paths: Sequence[Path]) -> None:
    """Refuse slices in natural order whose numbers have a gap, or whose names do not fit together.

    The last number that differs between the names is that of the slice. It may rise by any constant step, for which the
    smallest step found is taken. Names without numbers pass.
    """
    if len(paths) < 2 or not any(_NUMBER.search(path.name) for path in paths):
        return
    _require_same_pattern(paths)
    series = _slice_numbers(paths)
    step = min(b - a for a, b in pairwise(series))
    for (previous, path), (a, b) in zip(pairwise(paths), pairwise(series), strict=True):
        if b <= a:
            raise VolumeError(
                f"{path}: number {b} comes after {a} of {previous.name}, expected rising numbers. "
                "Rename the files, or ingest each series alone"
            )
        if b - a != step and step > 0:
            raise VolumeError(
                f"{path.parent}: slice {a + step} is missing between {previous.name} and {path.name}, "
                f"expected numbers that rise by {step}. Restore it, or ingest each part alone"
            )


def _slice_numbers(paths: Sequence[Path]) -> list[int]:
    """Return the last number in each name, among those that differ between the names."""
    numbers = [[int(text) for text in _NUMBER.findall(str(path))] for path in paths]
    varying = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return list(varying[-1]) if varying else [row[-1] for row in numbers]


def _require_same_pattern(paths: Sequence[Path]) -> None:
    """Check that all names are equal but for their numbers."""
    patterns = [_NUMBER.sub("#", str(path)) for path in paths]
    common, _ = Counter(patterns).most_common(1)[0]
    for path, pattern in zip(paths, patterns, strict=True):
        if pattern != common:
            example = paths[patterns.index(common)]
            raise VolumeError(
                f"{path}: is named unlike {example.name}, expected one numbered series. "
                "Move the file, or choose the slices with a glob"
            )
