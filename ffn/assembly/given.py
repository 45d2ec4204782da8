"""What people give `merge` and `sweep` beside a graph: corrections, and nuclei of which no score joins two."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence

from ffn.assembly.corrections import NOTHING_GIVEN, Constraints, Correction, constraints_of
from ffn.io.open import open_segmentation

log = logging.getLogger(__name__)


def add_given_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options ``--corrections`` and ``--nuclei``."""
    text = "also join and separate what it says; 'ffn view RUN --corrections FILE.csv' writes it"
    parser.add_argument("--corrections", metavar="FILE.csv", help=text)
    text = "labels of any resolution, one id for each nucleus or soma: no score joins two of them"
    parser.add_argument("--nuclei", metavar="VOLUME", help=text)


def given_inputs(corrections_path: str | None, nuclei_spec: str | None) -> dict[str, str]:
    """Return those that are given, by their names in records of what a file was made of."""
    given = {"corrections": corrections_path, "nuclei": nuclei_spec}
    return {name: spec for name, spec in given.items() if spec}


def read_constraints(
    corrections: Sequence[Correction], corrections_path: str | None, segmentation_spec: str
) -> Constraints:
    """Find the base segments of corrections; without a file, there are none."""
    if corrections_path is None:
        return NOTHING_GIVEN
    with open_segmentation(segmentation_spec) as base:
        found = constraints_of(corrections, corrections_path, base)
    log.info("%s: joins %d pairs, separates %d", corrections_path, len(found.joined), len(found.apart))
    return found
