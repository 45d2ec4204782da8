"""The cost of every body and segment: its part of the variation of information."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace

import numpy as np

from ffn.contingency import ContingencyTable, largest_parts
from ffn.evaluation.scores import entropy_terms

CSV_COLUMNS = ("kind", "id", "voxels", "parts", "voi", "share")


@dataclass(frozen=True)
class Costs:
    """Costs of all components of bodies, or of all segments, by ascending number; `names` are those in the volume."""

    numbers: np.ndarray
    names: np.ndarray
    voxels: np.ndarray
    num_parts: np.ndarray
    voi: np.ndarray


def costs_of(table: ContingencyTable, bodies: np.ndarray) -> tuple[Costs, Costs]:
    """Divide the VOI of the convention ``foreground`` among components of `bodies` (splits) and segments (mergers)."""
    both = table.foreground()
    components, segments = _costs(both.a, both.voxels), _costs(both.b, both.voxels)
    return replace(components, names=bodies[components.numbers.astype(np.int64)]), segments


def best_bodies(table: ContingencyTable) -> dict[int, int]:
    """Map each segment to the body that it shares most voxels with; leave out segments that share none."""
    both = table.foreground()
    best = both.keep(largest_parts(both.b, both.a, both.voxels))
    return dict(zip(best.b.tolist(), best.a.tolist(), strict=True))


def bodies_csv(table: ContingencyTable, bodies: np.ndarray) -> str:
    """Return the costs of all components of `bodies` and all segments as CSV, the costliest first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for kind, costs in zip(("truth", "segment"), costs_of(table, bodies), strict=True):
        total = costs.voi.sum() or 1.0
        for i in np.argsort(-costs.voi, kind="stable"):
            row = (costs.names[i], costs.voxels[i], costs.num_parts[i])
            writer.writerow([kind, *map(int, row), f"{costs.voi[i]:.6g}", f"{costs.voi[i] / total:.4g}"])
    return text.getvalue()


def _costs(ids: np.ndarray, voxels: np.ndarray) -> Costs:
    unique, inverse, num_parts = np.unique(ids, return_inverse=True, return_counts=True)
    voi = np.bincount(inverse, weights=entropy_terms(ids, voxels), minlength=len(unique))
    sizes = np.bincount(inverse, weights=voxels, minlength=len(unique)).astype(np.int64)
    return Costs(unique, unique, sizes, num_parts, voi)
