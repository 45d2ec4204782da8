r"""Measure what an hour of proofreading is worth: an oracle answers the questions of a finished run.

    python benchmarks/hour.py results/fib25-hour --truth labels.h5:stack --out oracle.csv --figure hour.svg

The truth answers what `ffn view RUN --queue oracle.csv` asks, in its order. Objects that end in the volume, or are
among the largest, take the time of a question, too, though there is nothing to answer. Prints the foreground VOI, bits,
before `fill`: after each answer that changes it, and at the end of some minutes at 10 and 30 s per question, which the
figure has as curves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from questions import Graph
from round import oracle

from ffn.assembly.given import Correction, corrections_text
from ffn.assembly.merge import pair_scores
from ffn.commands.queue import queue_inputs
from ffn.evaluation.errors import best_bodies
from ffn.report.charts import chart
from ffn.viewing.queue import Queue

SECONDS = (10, 30)  # per question: assumed
MINUTES = (1, 2, 5, 10, 20, 30, 60)
LEAST_CHANGE = 0.005  # bits


def main(words: Sequence[str] | None = None) -> None:
    """Answer all questions, and print what each minute has gained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    for name in ("--truth", "--out", "--figure"):
        parser.add_argument(name, required=True)
    given = parser.parse_args(words)
    inputs = queue_inputs(given.run, None, ())
    (path,) = inputs.graphs
    graph, queue = Graph.read(f"{path},{inputs.segmentation},{given.truth}"), Queue(inputs)
    scores, _ = pair_scores(graph.edges)
    found: list[dict[str, Any]] = [graph.foreground({}, scores)]
    lines, gains, started = list[Correction](), dict[str, list[float]](), time.process_time()
    for number, (place, line) in enumerate(oracle(queue, best_bodies(graph.table)), 1):
        found.append(graph.foreground(queue.answers, scores) if line else found[-1])
        gain = found[-2]["voi"] - found[-1]["voi"]
        answer = "nothing to answer" if line is None else line.action
        gains.setdefault(f"{place.kind}, {answer}", []).append(gain)
        if abs(gain) >= LEAST_CHANGE:
            print(f"{number}: {place.kind}, {answer}, {place.um3:.3f} µm³: VOI {found[-1]['voi']:.3f} ({-gain:+.3f})")
        lines += [line] if line else []
    Path(given.out).write_text(corrections_text(lines))
    print(f"{(time.process_time() - started) / len(found):.2f} s of CPU for each question and its score")
    for kind, each in sorted(gains.items()):
        print(f"{kind}: {len(each)}, gain {sum(each):.3f}, {sum(one >= LEAST_CHANGE for one in each)} of them more")
    for name in ("voi", "voi_split", "voi_merge"):
        print(name, " -> ".join(f"{found[k][name]:.3f}" for k in (0, -1)))
    voi = np.array([each["voi"] for each in found])
    for minutes in MINUTES:
        shown = (min(len(voi) - 1, minutes * 60 // each) for each in SECONDS)
        print(f"{minutes} min:", ", ".join(f"{n} questions, {voi[n]:.3f}" for n in shown))

    def draw(axes: Axes) -> None:
        for seconds in SECONDS:
            after = np.arange(len(voi)) * seconds / 60
            axes.step([*after, MINUTES[-1]], [*voi, voi[-1]], where="post", label=f"{seconds} s per question")
        axes.set_xlim(0, MINUTES[-1])
        axes.set_ylabel("foreground VOI, bits")

    Path(given.figure).write_text(chart("An hour of proofreading", draw, "minutes").svg + "\n")


if __name__ == "__main__":
    main()
