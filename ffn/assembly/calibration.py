"""The probability that two segments are one neuron, from all evidence of a decision point: a logistic regression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import yaml
from pydantic import BaseModel, Field, FiniteFloat

from ffn.assembly.merge_graph import MergeEdge, read_graphs
from ffn.errors import FfnError

MAX_STEPS = 100
TINY = 1e-9


class CalibrationError(FfnError):
    """A calibration that cannot be made or used."""


def features(edge: MergeEdge) -> dict[str, float]:
    """Return the inputs of the probability, which do not depend on the order of the two segments."""
    found = edge.evidence
    crossing = found.recovered_ab, found.recovered_ba
    smaller, larger = sorted((found.voxels_a, found.voxels_b))
    return {
        "own": min(found.recovered_aa, found.recovered_bb),
        "crossing": min(crossing),
        "crossing_best": max(crossing),
        "agreement": found.agreement,
        "iou": found.iou,
        "deleted": max(found.deleted_a, found.deleted_b),
        "lost": found.lost,
        "failed": float(min(found.fovs_a, found.fovs_b) <= 1),  # a seed that did not grow says little
        "smaller": float(np.log(smaller + 1)),
        "larger": float(np.log(larger + 1)),
        "radius": min(found.radius_a, found.radius_b),
        "contact": float(np.log(edge.contact_faces + 1)),
        "depth": float(np.log((edge.overlap_voxels + 1) / (edge.contact_faces + 1))),
        "brightness": edge.brightness,  # grey levels, so a fit with it is only for images of the same contrast
    }


def is_judged(edge: MergeEdge) -> bool:
    """Whether both sides were grown; else one of them failed, and nothing tells whether they are one neuron."""
    return min(edge.evidence.tries_a, edge.evidence.tries_b) > 0


class Term(BaseModel):
    """A feature: mean and standard deviation in the examples, and the coefficient of the standardised feature."""

    mean: FiniteFloat
    spread: Annotated[FiniteFloat, Field(gt=0)]
    weight: FiniteFloat


class Calibration(BaseModel):
    """Coefficients of a logistic regression on standardised features."""

    intercept: FiniteFloat  # constant term
    features: Annotated[dict[str, Term], Field(min_length=1)]

    def probabilities(self, edges: Sequence[MergeEdge]) -> np.ndarray:
        """Return the probability of each decision point, float64 (N,); NaN where only one side was grown."""
        terms = [(term.mean, term.spread, term.weight) for term in self.features.values()]
        mean, spread, weights = map(np.array, zip(*terms, strict=True))
        rows = (np.array([features(edge)[name] for name in self.features]) for edge in edges)
        values = np.array([*rows]).reshape(-1, len(self.features))
        found = sigmoid((values - mean) / spread @ weights + self.intercept)
        return np.where([is_judged(edge) for edge in edges], found, np.nan)


def read_calibration(path: str | Path) -> Calibration:
    """Read a file of ``ffn calibrate``."""
    try:
        found = Calibration.model_validate(yaml.safe_load(Path(path).read_text()))
        if unknown := found.features.keys() - FEATURES:
            raise ValueError(f"unknown features {sorted(unknown)}")
    except (OSError, yaml.YAMLError, ValueError) as reason:
        text = " ".join(str(reason).split())
        raise CalibrationError(f"{path}: cannot be read ({text}), expected a file of ffn calibrate") from None
    return found


def read_scored(paths: Sequence[str | Path], calibration: str | None) -> Iterator[MergeEdge]:
    """Read a graph as `read_graphs` does; the probabilities of a calibration, if given, replace the scores."""
    known = None if calibration is None else read_calibration(calibration)
    for edges in read_graphs(paths):
        if known is None:
            yield from edges
        else:
            values = known.probabilities(edges).tolist()
            yield from (replace(edge, score=value) for edge, value in zip(edges, values, strict=True))


def fit(
    edges: Sequence[MergeEdge], same: np.ndarray, penalty: float, names: Sequence[str] | None = None
) -> Calibration:
    """Fit the probability to decision points of which `same` (bool, (N,)) says whether they join one neuron.

    `penalty` is of the squared coefficients, as if so many examples spoke against each, which keeps few examples from
    being overfitted. Newton's method needs no random numbers, and the log likelihood has one maximum.
    """
    if same.all() or not same.any():
        raise CalibrationError(
            f"calibrate: {int(same.sum())} of {len(same)} decision points join one neuron, expected some that do and "
            "some that do not. Take a larger box, or lower agglomerate.min_overlap_depth"
        )
    names = sorted(FEATURES) if names is None else names
    values = np.array([[features(edge)[name] for name in names] for edge in edges])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    spread[spread < TINY] = 1.0
    columns = np.column_stack([(values - mean) / spread, np.ones(len(values))])
    weights, penalties = np.zeros(len(mean) + 1), np.append(np.full(len(mean), penalty), TINY)
    *fitted, intercept = most_likely(columns, same, penalties, weights).tolist()
    terms = zip(names, mean.tolist(), spread.tolist(), fitted, strict=True)
    found = {name: Term(mean=m, spread=s, weight=w) for name, m, s, w in terms}
    return Calibration(intercept=intercept, features=found)


def quality(probabilities: np.ndarray, same: np.ndarray) -> dict[str, float | int]:
    """Return how good probabilities are: log loss, Brier score, and the area under the ROC curve (nan for one kind)."""
    clipped = probabilities.clip(TINY, 1 - TINY)
    ranks = float("nan")
    if same.any() and not same.all():
        others = np.sort(probabilities[~same])
        below, up_to = (np.searchsorted(others, probabilities[same], side) for side in ("left", "right"))
        ranks = float(np.mean(below + up_to) / 2 / len(others))
    return {
        "points": len(same),
        "same": int(same.sum()),
        "log_loss": float(-np.mean(np.where(same, np.log(clipped), np.log1p(-clipped)))) if len(same) else float("nan"),
        "brier": float(np.mean((probabilities - same) ** 2)) if len(same) else float("nan"),
        "auc": ranks,
    }


def most_likely(columns: np.ndarray, same: np.ndarray, penalty: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the weights (float64, (F,)) of a logistic regression; `penalty` is of their distance from `expected`."""
    weights = expected.copy()
    for _ in range(MAX_STEPS):
        found = sigmoid(columns @ weights)
        slope = columns.T @ (found - same) + penalty * (weights - expected)
        curvature = (columns * (found * (1 - found))[:, None]).T @ columns + np.diag(penalty + TINY)
        step = np.linalg.solve(curvature, slope)
        weights -= step / max(1.0, float(np.abs(step).max()))  # far from the maximum, whole steps may overshoot
        if np.abs(step).max() < TINY:
            break
    return weights


def sigmoid(values: np.ndarray) -> np.ndarray:
    """Return the probability of each log odds."""
    return 0.5 * (1 + np.tanh(values / 2))


# The best of some sets on FIB-25, z < 85, with pairs of segments left out; few, because decision points are few.
DEFAULT = ("agreement", "crossing", "crossing_best", "failed", "iou", "own")
FEATURES = frozenset((*DEFAULT, *"deleted lost smaller larger radius contact depth brightness".split()))
