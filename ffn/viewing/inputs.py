"""The inputs of an export: volumes and tables."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.evaluation.errors import worst_of_each_kind
from ffn.io.atomic import unreadable
from ffn.io.open import open_segmentation, open_truth, open_volume
from ffn.io.volume import Volume

OPENERS = {
    "image": open_volume,
    "segmentation": open_segmentation,
    "truth": open_truth,
    "supervoxels": open_segmentation,
}
GROUP_COLUMNS = [("base_id", np.uint64), ("group_id", np.uint64)]
NUM_LINKS = 10  # worst splits, and worst mergers, that get a link; our choice


@dataclass(frozen=True)
class Sources:
    """Inputs of an export. Volumes are ``NAME.zarr``, ``file.h5:dataset`` or URL; None or empty leaves one out."""

    image: str | None = None  # uint8 or uint16
    segmentation: str | None = None
    truth: str | None = None
    supervoxels: str | None = None  # segmentation before agglomeration
    errors: str | None = None  # score file of ffn evaluate

    @property
    def given(self) -> dict[str, str]:
        """Names and specifications of all inputs that are given."""
        return {name: spec for name, spec in vars(self).items() if spec}

    @property
    def volumes(self) -> dict[str, str]:
        """Names and specifications of the volumes that are given."""
        return {name: spec for name, spec in self.given.items() if name in OPENERS}


@contextlib.contextmanager
def open_volumes(sources: Sources) -> Iterator[Mapping[str, Volume]]:
    """Yield all volumes by their names."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(OPENERS[name](spec)) for name, spec in sources.volumes.items()}


def read_groups(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Read an agglomeration: base ids, ascending, and the group of each, the last one of those that are repeated."""
    expected = "a CSV file of base_id,group_id"
    with unreadable(path, expected, ExportError), open(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "loadtxt: input contained no data")  # nothing was joined
        has_header = file.readline().startswith("base_id")
        pairs = np.loadtxt(path, GROUP_COLUMNS, delimiter=",", skiprows=int(has_header), ndmin=1)[::-1]
    known, rows = np.unique(pairs["base_id"], return_index=True)
    return known, pairs["group_id"][rows]


def read_errors(path: str) -> list[dict[str, Any]]:
    """Read the worst errors from a score file."""
    with unreadable(path, "scores of this version of ffn evaluate. Run it first", ExportError):
        return worst_of_each_kind(json.loads(Path(path).read_text())["errors"], NUM_LINKS)
