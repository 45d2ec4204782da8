"""The costliest splits and mergers: the list behind the report's close-ups and the links of an export."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import ContingencyTable, find_runs
from ffn.evaluation.error_places import ErrorPlace, Parts

CSV_COLUMNS = ("name", "kind", "z", "y", "x", "truth_ids", "segment_ids", "voxels", "voi")


class ErrorPair(NamedTuple):
    """One error: a piece of an object that should be joined to its main part, or separated from it.

    Parameters
    ----------
    name : str
        Kind and rank: ``split-01`` is the costliest split.
    parts : Parts
        The objects involved. In a split, the owner is a body and its parts are segments; in a merger it is the other
        way round.
    voxels : int
        Size of the piece.
    voi : float
        Bits of VOI that correcting this error alone would save.
    """

    name: str
    parts: Parts
    voxels: int
    voi: float


def worst_errors(table: ContingencyTable, count: int) -> list[ErrorPair]:
    """List the splits and mergers whose correction would save the most VOI.

    Parameters
    ----------
    table : ContingencyTable
        Pairs of body and segment. Background does not count.
    count : int
        Maximum number of each kind.

    Returns
    -------
    list of ErrorPair
        Splits first; each kind by falling VOI.
    """
    both = table.foreground()
    splits = _pieces("split", both.a, both.b, both.voxels, count)
    return [*splits, *_pieces("merge", both.b, both.a, both.voxels, count)]


def error_entries(errors: list[ErrorPair], places: list[ErrorPlace]) -> list[dict[str, Any]]:
    """Return errors and their places as entries of a score file."""
    return [
        {
            "name": error.name,
            "kind": error.parts.kind,
            "position_zyx": list(place.position_zyx),
            "touching": place.touching,
            **_ids(error.parts),
            "voxels": error.voxels,
            "voi": error.voi,
        }
        for error, place in zip(errors, places, strict=True)
    ]


def worst_of_each_kind(entries: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Return the first `count` splits and the first `count` mergers of a score file."""
    kinds = ([entry for entry in entries if entry["kind"] == kind] for kind in ("split", "merge"))
    return [entry for of_kind in kinds for entry in of_kind[:count]]


def errors_csv(entries: list[dict[str, Any]]) -> str:
    """Return the entries of a score file as CSV. Several ids in one column are separated by spaces."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for entry in entries:
        names = entry["name"], entry["kind"]
        ids = (" ".join(map(str, entry[key])) for key in ("truth_ids", "segment_ids"))
        writer.writerow([*names, *entry["position_zyx"], *ids, entry["voxels"], f"{entry['voi']:.6g}"])
    return text.getvalue()


def _pieces(kind: str, owners: np.ndarray, parts: np.ndarray, voxels: np.ndarray, count: int) -> Iterator[ErrorPair]:
    """Yield the costliest parts that are not the largest of their owner."""
    order = np.lexsort((parts, -voxels, owners))  # the first row of each owner is its main part
    owners, parts, voxels = owners[order], parts[order], voxels[order]
    main = np.repeat(*find_runs(owners))
    saved = _saving(voxels[main].astype(np.float64), voxels.astype(np.float64)) / max(voxels.sum(), 1)
    pieces = np.flatnonzero(main != np.arange(len(main)))
    worst = pieces[np.argsort(-saved[pieces], kind="stable")[:count]]
    for rank, i in enumerate(worst, start=1):
        found = Parts(kind, int(owners[i]), int(parts[main[i]]), int(parts[i]))
        yield ErrorPair(f"{kind}-{rank:02d}", found, int(voxels[i]), float(saved[i]))


def _ids(parts: Parts) -> dict[str, list[int]]:
    """Return the objects involved, the main part first."""
    owner, pieces = [parts.owner], [parts.main, parts.piece]
    truth, segments = (owner, pieces) if parts.kind == "split" else (pieces, owner)
    return {"truth_ids": truth, "segment_ids": segments}


def _saving(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits times voxels saved when parts of a and b voxels become one."""
    return (a + b) * np.log2(a + b) - a * np.log2(a) - b * np.log2(b)
