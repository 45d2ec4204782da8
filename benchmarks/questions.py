r"""Measure what the questions of `ffn queue` are worth: an oracle answers them from the truth.

    python benchmarks/questions.py demo=GRAPH.csv,segmentation.zarr,labels.zarr fib25=… snemi3d=…

The prior of each graph is fitted to the others, so three or more make sense; with one, it is that of the package. For
every graph, once with the pairs that it judged and once with all that claimed common voxels, prints the number of
questions; which share of the gain in foreground VOI a fifth of them brings, of the gain of all; the same of the first
ten questions, and of ten random ones (mean of 20 orders); and the expected calibration error (ten bins) on the half of
the pairs that was not fitted (mean of 20 halves), before and after the fit.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffn.assembly import questions
from ffn.assembly.config import MergeConfig
from ffn.assembly.contacts import OVERLAPS, overlap_rows, read_rows
from ffn.assembly.given import Constraints
from ffn.assembly.merge import merge_groups, pair_scores
from ffn.assembly.merge_graph import MergeEdge, read_graphs
from ffn.assembly.questions import PENALTIES, PRIOR, Pairs
from ffn.contingency import ContingencyTable
from ffn.evaluation.errors import best_bodies
from ffn.evaluation.evaluate import common_box
from ffn.evaluation.scores import group_totals
from ffn.evaluation.scoring import tabulate
from ffn.evaluation.sweep import sweep_step
from ffn.io.masks import open_masked_truth
from ffn.io.open import open_segmentation

NUM_ORDERS = 20
FIRST = 10
NO_PRIOR = {name: (0.0, 1.0, 0.0) for name in PRIOR}
FLAGS = ("not_judged", "constant")


@dataclass
class Graph:
    """A graph, its contacts, and what the truth says of its segments."""

    edges: list[MergeEdge]
    pairs: Pairs
    sizes: dict[int, int]
    table: ContingencyTable

    @classmethod
    def read(cls, text: str) -> Graph:
        """Read GRAPH.csv,SEGMENTATION,TRUTH."""
        graph, segmentation, truth = text.split(",")
        with open_masked_truth(truth, ()) as labels, open_segmentation(segmentation) as base:
            table = tabulate(labels.read, base.read, common_box(base, labels, None), (128, 128, 128))
            ids, voxels = np.unique(base.read(base.box), return_counts=True)
        sizes = dict(zip(ids[ids > 0].tolist(), voxels[ids > 0].tolist(), strict=True))
        edges = [*read_graphs([graph])]
        return cls(
            edges, questions.gather(edges, overlap_rows(read_rows(segmentation, OVERLAPS, 6)), sizes), sizes, table
        )

    def judged(self) -> Graph:
        """Return the graph without the pairs that were not judged."""
        graph = {(edge.segment_a, edge.segment_b) for edge in self.edges}
        keep = np.array([(a, b) in graph for a, b in self.pairs.ids.tolist()])
        return Graph(self.edges, Pairs(*(column[keep] for column in self.pairs)), self.sizes, self.table)

    def same(self, pure: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return whether the segments of each pair are of one body, and whether the truth tells."""
        table = self.table
        if pure:  # four fifths in one body, and labelled for the half of it
            of_all = group_totals(table.b, table.voxels)
            labelled = group_totals(table.b, np.where(table.a != 0, table.voxels, 0))
            table = table.keep((labelled >= 0.5 * of_all) & (table.voxels >= 0.8 * labelled))
        bodies = best_bodies(table)
        a, b = np.array([[bodies.get(each, 0) for each in pair] for pair in self.pairs.ids.tolist()]).T
        same: np.ndarray = a == b
        return same, (a > 0) & (b > 0)

    def foreground(self, answers: dict[tuple[int, int], bool], scores: np.ndarray) -> dict[str, Any]:
        """Return the foreground scores of the merged segmentation, with answers as corrections."""
        rows = [[pair for pair, same in answers.items() if same is kind] for kind in (True, False)]
        given = Constraints(*(np.array(pairs, np.uint64).reshape(-1, 2) for pairs in rows))
        return sweep_step(self.table, scores, MergeConfig().threshold, given)["foreground"]


def fitted_prior(graphs: Sequence[Graph]) -> dict[str, tuple[float, float, float]]:
    """Fit the prior to graphs that were gathered with `NO_PRIOR`."""
    columns = np.concatenate([graph.pairs.columns for graph in graphs])
    truths = [graph.same(pure=True) for graph in graphs]
    same, known = (np.concatenate(parts) for parts in zip(*truths, strict=True))
    columns, same, alone = columns[known], same[known], columns[known, [*PRIOR].index("not_judged")] > 0
    scales = []
    for number, name in enumerate(PRIOR):
        rows = alone if name == "claimed_alone" else ~alone
        values = columns[rows, number]
        scales.append((0.0, 1.0) if name in FLAGS else (float(values.mean()), float(values.std()) or 1.0))
        columns[rows, number] = (values - scales[-1][0]) / scales[-1][1] if name not in FLAGS else values
    penalty = np.append(np.ones(len(PRIOR) - 1), 1e-9)
    weights = questions.most_likely(columns, same.astype(float), penalty, np.zeros(len(PRIOR))).tolist()
    return {name: (*scale, weight) for name, scale, weight in zip(PRIOR, scales, weights, strict=True)}


def gains(graph: Graph, order: np.random.Generator | None, most: int | None = None) -> tuple[np.ndarray, int]:
    """Return the VOI after each answer, and how many questions there were before the first; random with an `order`."""
    scores, _ = pair_scores(graph.edges)
    objects = dict(np.stack(merge_groups(scores, MergeConfig().threshold), axis=1).tolist())
    same, known = graph.same()
    answers: dict[tuple[int, int], bool] = {}
    found, number = [graph.foreground(answers, scores)["voi"]], 0
    while most is None or len(answers) < most:
        probabilities = graph.pairs.probabilities(answers)
        asked, _ = questions.ask(graph.pairs, probabilities, answers, objects, graph.sizes)
        number = number or len(asked)
        if not asked:
            break
        chosen = asked[0 if order is None else order.integers(len(asked))]
        a, b = graph.pairs.ids[chosen.row].tolist()
        answers[a, b] = bool(same[chosen.row]) if known[chosen.row] else chosen.joined
        found.append(graph.foreground(answers, scores)["voi"])
    return np.array(found), number


def calibration_error(probabilities: np.ndarray, same: np.ndarray) -> float:
    """Return the expected calibration error, with ten bins of equal width."""
    bins = np.minimum((probabilities * 10).astype(int), 9)
    off = [abs((probabilities[bins == k] - same[bins == k]).sum()) for k in range(10)]
    return sum(off) / len(same)


def calibration(graph: Graph) -> tuple[float, float]:
    """Return the calibration error on the half that is not fitted, with and without the other."""
    same, known = graph.same()
    errors = []
    for seed in range(NUM_ORDERS):
        fitted = known & (np.random.default_rng(seed).random(len(known)) < 0.5)
        pairs = map(tuple, graph.pairs.ids[fitted].tolist())
        answers = {(a, b): bool(one) for (a, b), one in zip(pairs, same[fitted], strict=True)}
        left = known & ~fitted
        found = [graph.pairs.probabilities(each)[left] for each in ({}, answers)]
        errors.append([calibration_error(each, same[left]) for each in found])
    before, after = np.mean(errors, axis=0).tolist()
    return before, after


def report(name: str, graph: Graph) -> None:
    """Print the figures of one graph."""
    voi, number = gains(graph, None)
    all_of_it = voi[0] - voi[-1]
    fifth = math.ceil(number / 5)
    at_fifth, at_first = ((voi[0] - voi[min(k, len(voi) - 1)]) / all_of_it for k in (fifth, FIRST))
    random = [gains(graph, np.random.default_rng(seed), FIRST)[0] for seed in range(NUM_ORDERS)]
    at_random = np.mean([(voi[0] - each[-1]) / all_of_it for each in random])
    before, after = calibration(graph)
    print(
        f"{name}: {number} questions, VOI {voi[0]:.3f} -> {voi[-1]:.3f}; {at_fifth:.0%} of the gain with {fifth}, "
        f"{at_first:.0%} with {FIRST}, {at_random:.0%} with {FIRST} at random; "
        f"calibration error {before:.3f}, refitted {after:.3f}",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Print the figures of every graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", nargs="+", metavar="NAME=GRAPH.csv,SEGMENTATION,TRUTH")
    texts = dict(text.split("=", 1) for text in parser.parse_args(words).graphs)
    package = dict(PRIOR)
    PRIOR.update(NO_PRIOR)
    plain = {name: Graph.read(text) for name, text in texts.items()}
    priors = {
        name: fitted_prior([plain[other] for other in plain if other != name]) for name in plain if len(plain) > 1
    }
    if len(plain) > 1:
        print("prior:", {k: tuple(float(f"{x:.3g}") for x in v) for k, v in fitted_prior([*plain.values()]).items()})
    assert len(PENALTIES) == len(PRIOR)
    for name, text in texts.items():
        PRIOR.update(priors.get(name, package))
        graph = Graph.read(text)
        report(f"{name}, judged pairs", graph.judged())
        report(f"{name}, all pairs", graph)


if __name__ == "__main__":
    main()
