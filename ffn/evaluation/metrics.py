"""The metrics of a score file: name, title, where each is found, and whether lower or higher is better.

Tables, the report and `ffn select` follow this list. To add a metric, compute it in `ffn.evaluation.scores` and add a
row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    title: str
    better: Literal["lower", "higher"] | None = None
    by_convention: bool = True
    is_fraction: bool = False

    def value(self, scores: Mapping[str, Any], convention: str) -> float | None:
        """Return the value from the content of a score file; None if the convention leaves no voxel."""
        return scores["scores"][convention][self.name] if self.by_convention else scores[self.name]

    def rank(self, value: float) -> float:
        """Return a number that is lower for a better value."""
        return -value if self.better == "higher" else value


METRICS = (
    Metric("are", "ARE", "lower"),
    Metric("are_precision", "precision", "higher"),
    Metric("are_recall", "recall", "higher"),
    Metric("voi", "VOI", "lower"),
    Metric("voi_split", "split", "lower"),
    Metric("voi_merge", "merge", "lower"),
    Metric("covered_fraction", "covered", by_convention=False, is_fraction=True),
)
