"""Choose the best of several checkpoints by its score on a validation box."""

from __future__ import annotations

import argparse

from ffn.errors import ConfigError
from ffn.evaluation.config import SelectConfig
from ffn.geometry import Box
from ffn.options import add_options, from_arguments

FORM = "NAME=MODEL_DIR,SCORES.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--candidate",
        required=True,
        action="append",
        metavar=FORM,
        help="a model and its scores on the validation box; repeat for each",
    )
    parser.add_argument(
        "--report-box",
        type=Box.parse,
        metavar="Z0:Z1,Y0:Y1,X0:X1",
        help="box that the chosen model will be reported on; it must not overlap the validation box",
    )
    parser.add_argument("--out", required=True, metavar="MODEL_DIR", help="copy of the best model, with selection.json")
    add_options(parser, SelectConfig, skip=("checkpoints", "volume", "box"))


def run(arguments: argparse.Namespace) -> None:
    from ffn.evaluation.select import Candidate, select

    candidates = {}
    for text in arguments.candidate:
        name, equals, rest = text.partition("=")
        model, comma, scores = rest.partition(",")
        if not (name and equals and model and comma and scores):
            raise ConfigError(f"--candidate: {text!r} is incomplete, expected {FORM}")
        candidates[name] = Candidate(model, scores)
    select(candidates, arguments.out, from_arguments(SelectConfig, arguments), arguments.report_box)
