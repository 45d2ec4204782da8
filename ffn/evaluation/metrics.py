"""The metrics of a score file: how each is called, where it stands, and which way is better.

Tables, the report and the choice of a checkpoint follow this list, so a new metric is a row here and a value in
`ffn.evaluation.scores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal


@dataclass(frozen=True)
class Metric:
    """One figure of a segmentation.

    Parameters
    ----------
    name : str
        Key in a score file.
    title : str
        Head of its column in tables.
    better : {"lower", "higher"}, optional
        Which of two values is better; none for a metric that does not rank segmentations.
    by_convention : bool
        Whether there is a value for each convention, or one for the segmentation.
    is_fraction : bool
        Whether tables show it in percent.
    """

    name: str
    title: str
    better: Literal["lower", "higher"] | None = None
    by_convention: bool = True
    is_fraction: bool = False

    def value(self, scores: Mapping[str, Any], convention: str) -> float | None:
        """Return the value in the content of a score file; None where the convention left no voxel."""
        return scores["scores"][convention][self.name] if self.by_convention else scores[self.name]

    def rank(self, value: float) -> float:
        """Return a number that is lower for better values."""
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
BY_NAME = {metric.name: metric for metric in METRICS}

if TYPE_CHECKING:
    RankingName = str
else:  # a type that pydantic checks and the command line lists
    RankingName = Literal[tuple(metric.name for metric in METRICS if metric.better)]
