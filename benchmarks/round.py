r"""Measure what a round of corrections is worth: an oracle answers the first questions of a finished run.

    python benchmarks/round.py results/before --volume asked --truth labels.zarr --unseen other

RUN has two segmented volumes: one that is asked about, without labels, and one with labels that nobody corrects
(`train_box: none`). The answers are applied (`ffn correct`), and the network learns from them (`ffn round`). Prints the
foreground VOI of the other volume, bits, with the weights of both runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ffn.assembly.given import Correction, corrections_text
from ffn.commands.queue import queue_inputs
from ffn.commands.round import next_name
from ffn.evaluation.errors import best_bodies
from ffn.evaluation.evaluate import common_box
from ffn.evaluation.scoring import tabulate
from ffn.io.masks import open_masked_truth
from ffn.io.open import open_segmentation
from ffn.viewing.queue import JOINED, Place, Queue


def oracle(queue: Queue, bodies: Mapping[int, int]) -> Iterator[tuple[Place, Correction | None]]:
    """Yield one place after another, and its answer by the body of each segment, once the queue has that.

    Where the bodies do not tell, nothing changes.
    """
    shown: list[tuple[Any, ...]] = []
    while places := queue.places(1, shown):
        place = places[0]
        shown.append(place.key)
        if place.pair is None:
            yield place, None
            continue
        a, b = (bodies.get(each, 0) for each in place.pair)
        queue.answers[place.pair] = a == b if a and b else place.kind == JOINED
        yield place, place.correction(queue.answers[place.pair])


def answer(run: str, volume: str, truth: str, most: int, out: Path) -> int:
    """Answer the first questions from the truth; return their number."""
    inputs = queue_inputs(run, volume, ())
    with open_masked_truth(truth, ()) as labels, open_segmentation(inputs.segmentation) as base:
        bodies = best_bodies(tabulate(labels.read, base.read, common_box(base, labels, None), (128, 128, 128)))
    lines = [*islice((line for _, line in oracle(Queue(inputs), bodies) if line), most)]
    out.write_text(corrections_text(lines))
    return len(lines)


def scores(run: Path, volume: str) -> dict[str, float]:
    """Return the foreground scores of a volume."""
    found: dict[str, float] = json.loads((run / f"evaluation/{volume}.json").read_text())["scores"]["foreground"]
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Do a round, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    for name in ("--volume", "--truth", "--unseen"):
        parser.add_argument(name, required=True)
    parser.add_argument("--answers", type=int, default=20)
    given = parser.parse_args(words)
    run = Path(given.run)
    answers = run / "oracle.csv"
    number = answer(given.run, given.volume, given.truth, given.answers, answers)
    before = scores(run, given.unseen)
    for command in (
        ["correct", "--volume", given.volume, str(run), str(answers)],
        ["round", "--volume", given.volume, str(run)],
    ):
        subprocess.run([sys.executable, "-m", "ffn", *command, "--cores", "1"], check=True)
    after = scores(run.with_name(next_name(run.name)), given.unseen)
    print(f"{run.name}: {number} answers")
    for name in ("voi", "voi_split", "voi_merge"):
        print(f"{name} {before[name]:.3f} -> {after[name]:.3f} ({after[name] / before[name] - 1:+.1%})")


if __name__ == "__main__":
    main()
