"""Record how an output was made, without times and host names, so that reruns give the same bytes; and its revision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ffn import __version__
from ffn.errors import without_secrets

if TYPE_CHECKING:  # `ffn --help` reads the revisions, and pydantic takes long to load
    from pydantic import BaseModel

    from ffn.config import Section

# Raise a stage's number when its results change: `{"fill": 2}`. The workflow then makes them again, and checkpoints of
# the stage count no more; the version of the package does neither. tests/stages/test_revisions.py fails if you forget.
REVISIONS: dict[str, int] = {
    "affinities": 2,
    "agglomerate": 9,
    "consensus": 4,
    "coordinates": 2,
    "evaluate": 9,
    "export": 9,
    "fill": 11,
    "ingest": 4,
    "learn-affinities": 2,
    "membrane": 3,
    "merge": 5,
    "partition": 2,
    "reconcile": 6,
    "records": 3,
    "report": 8,
    "segment": 7,
    "skeletonize": 2,
    "study": 7,
    "sweep": 7,
    "synth": 2,
    "train": 5,
}


def revision(stage: str) -> int:
    """Return the revision of a stage's results, 1 unless it was raised."""
    return REVISIONS.get(stage, 1)


def provenance(stage: str, config: BaseModel | None = None, **inputs: object) -> dict[str, Any]:
    """Describe how an output was made."""
    return {
        "stage": stage,
        "version": __version__,
        "config": {} if config is None else config.model_dump(mode="json"),
        "inputs": {name: without_secrets(str(value)) for name, value in inputs.items()},
    }


def fingerprint(stage: str, config: Section | None = None, **inputs: object) -> dict[str, Any]:
    """Describe everything that a result depends on. A killed job resumes only from work of the same fingerprint."""
    return {
        "stage": stage,
        "revision": revision(stage),
        "config": {} if config is None else config.result_options(),
        "inputs": {name: without_secrets(str(value)) for name, value in inputs.items()},
    }
