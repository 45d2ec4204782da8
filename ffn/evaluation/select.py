"""Stage `select`: keep the checkpoint that scores best on the validation box."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ffn.errors import ConfigError, EvaluationError
from ffn.evaluation.scores import METRICS
from ffn.io.atomic import unreadable, write_json
from ffn.model.store import load_model, save_model
from ffn.options import parse_named
from ffn.provenance import provenance

SELECTION_FILE = "selection.json"
METRIC, CONVENTION = "voi", "all"

log = logging.getLogger(__name__)

FORM = "NAME=MODEL_DIR,SCORES.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Choose the best of several checkpoints by its score on a validation box.

    example:
      ffn select --candidate 500=a/,a.json --candidate 1000=b/,b.json --out best/
    """
    parser.add_argument(
        "--candidate",
        required=True,
        action="append",
        metavar=FORM,
        help="a model and its scores on the validation box; repeat for each",
    )
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="copy of the best model, with selection.json")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    candidates = parse_named("--candidate", arguments.candidate)
    select({name: Candidate.parse(text) for name, text in candidates.items()}, arguments.out)


class Candidate(NamedTuple):
    """A checkpoint to choose from."""

    model: str
    scores: str

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Read ``MODEL_DIR,SCORES.json``."""
        model, _, scores = text.partition(",")
        if not (model and scores):
            raise ConfigError(f"--candidate: {text!r} is incomplete, expected {FORM}")
        return cls(model, scores)


def select(candidates: Mapping[str, Candidate], out_folder: str | Path) -> dict[str, Any]:
    """Copy the model of the best candidate to a folder, and write the scores of all to ``selection.json`` there.

    The best one has the lowest VOI over all voxels; of equal ones, it is the last. Returns the content of
    ``selection.json``.

    Raises
    ------
    EvaluationError
        If a score file is damaged, the candidates were scored on different boxes or truths.
    ModelError
        If the best model is missing or damaged.
    """
    scores = {name: _read(candidate.scores) for name, candidate in candidates.items()}
    places = {_place(entry) for entry in scores.values()}
    if len(places) > 1:
        raise EvaluationError(f"--candidate: scored on {sorted(places)}, expected one box of one truth for all")
    ((box, _),) = places
    table = {name: {m.name: m.value(entry, CONVENTION) for m in METRICS} for name, entry in scores.items()}
    values = {name: float(entry["scores"][CONVENTION][METRIC]) for name, entry in scores.items()}
    best = min(reversed(values), key=lambda name: values[name])
    result = {
        "best": best,
        "box": box,
        "metric": METRIC,
        "convention": CONVENTION,
        "candidates": [{"name": name, **row} for name, row in table.items()],
        "provenance": provenance("select", None, **{name: one.model for name, one in candidates.items()}),
    }
    model = load_model(candidates[best].model)
    write_json(Path(out_folder) / SELECTION_FILE, result)
    save_model(out_folder, replace(model, provenance={**model.provenance, "selected": f"{best} on {box}"}))
    log.info("%s is the best of %d: %s %.4f", best, len(table), METRIC, values[best])
    return result


def _read(path: str) -> dict[str, Any]:
    with unreadable(path, "scores of 'ffn evaluate'. Evaluate again", EvaluationError):
        scores = json.loads(Path(path).read_text())
        _place(scores)
        for metric in METRICS:
            metric.value(scores, CONVENTION)
    return scores


def _place(scores: Mapping[str, Any]) -> tuple[str, str]:
    """Return box and truth of scores."""
    return scores["box"], scores["provenance"]["inputs"]["truth"]
