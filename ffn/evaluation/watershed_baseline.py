"""Make the watershed baseline of a segmentation, score it on the same voxels, and save it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.evaluation.scoring import Scorer
from ffn.geometry import Box, zyx
from ffn.io.atomic import write_json
from ffn.io.create import create_volume
from ffn.io.volume import Placement, Read, Volume
from ffn.provenance import provenance

log = logging.getLogger(__name__)


class KeptSweep(NamedTuple):
    """Scores of finished settings, so that a killed process does not make their watersheds again.

    Parameters
    ----------
    path : Path
        JSON file.
    made_of : dict
        What they depend on, ready for JSON; a file of anything else does not count.
    """

    path: Path
    made_of: dict[str, Any]

    def read(self) -> list[dict[str, Any]]:
        """Return what was kept last; empty if there is none."""
        try:
            content = json.loads(self.path.read_text())
            return content["sweep"] if content["made_of"] == self.made_of else []
        except (OSError, ValueError, LookupError, TypeError):
            return []

    def write(self, sweep: list[dict[str, Any]]) -> None:
        """Keep the finished part of a sweep."""
        write_json(self.path, {"made_of": self.made_of, "sweep": sweep})


def score_watershed(
    scorer: Scorer,
    image: Volume,
    segmentations: Mapping[str, Volume],
    box: Box,
    kept: KeptSweep,
    out: str | None = None,
) -> dict[str, Any]:
    """Segment the middle of `box` by the best watershed of a sweep, and score it.

    Parameters
    ----------
    scorer : Scorer
        Has the ground truth and the largest number of voxels for a watershed.
    image : Volume
        Image to segment.
    segmentations : dict of str to Volume
        What the watershed is compared with, by name; last the one that is scored.
    box : Box
        Where it is scored.
    kept : KeptSweep
        Where finished settings are kept.
    out : str, optional
        ``NAME.zarr`` or ``FILE.h5:DATASET`` to save the watershed in.

    Returns
    -------
    dict
        ``method``, ``settings``, ``sweep``, ``box`` and the scores; ``same_voxels`` has those on the voxels that each
        segmentation covers, see `Scorer.scores_where`. If the middle is smaller than the box, ``beside`` has the
        scores of the last segmentation in the middle. There is no run length if the middle has no skeleton.

    Raises
    ------
    EvaluationError
        If the middle has no labelled voxel.
    """
    from ffn.evaluation.baseline import best_watershed

    middle = middle_of(box, scorer.config.watershed_max_voxels)
    truth = scorer.truth.read(middle)
    if not truth.any():
        raise EvaluationError(
            f"{scorer.truth.name}: the truth has no labelled voxel in {middle}, the middle of {box}, at least one is "
            "needed to choose a watershed. Raise evaluate.watershed_max_voxels, choose another box, or set "
            "evaluate.watershed: false"
        )
    labels, sweep = best_watershed(image.read(middle), truth, scorer.voxel_size_zyx_nm, kept.read(), kept.write)
    if out:
        _keep(labels, middle, scorer, image.name, out)
    result = {"method": "watershed", "settings": sweep[0]["settings"], "sweep": sweep, "box": str(middle)}
    if middle != box:
        scorer = scorer.within(middle)
    reads = {name: volume.read for name, volume in segmentations.items()}
    if middle != box:
        log.info("baseline: covers only %s, so the segmentation is scored there too", middle)
        name, last = reads.popitem()
        reads = {name: last}
        result["beside"] = scorer.scores(scorer.compare(last, middle))
    return result | score_baseline(scorer, lambda block: labels[block.slices(middle.start)], reads, middle)


def score_baseline(scorer: Scorer, read: Read, others: Mapping[str, Read], box: Box) -> dict[str, Any]:
    """Score a baseline in a box, and on the voxels there that others cover."""
    return {**scorer.scores(scorer.compare(read, box)), "same_voxels": scorer.scores_where(read, others, box)}


def middle_of(box: Box, max_voxels: int) -> Box:
    """Return the middle of a box: the same proportions, `max_voxels` at most; of a thin stack, a section.

    Examples
    --------
    >>> str(middle_of(Box((0, 0, 0), (8, 16, 32)), 512)), middle_of(Box((0, 0, 0), (1, 50, 50)), 100).num_voxels
    ('2:6,4:12,8:24', 100)
    """
    if box.num_voxels <= max_voxels:
        return box
    factor = (max_voxels / box.num_voxels) ** (1 / 3)
    while math.prod(shape := zyx(max(1, int(n * factor + 1e-9)) for n in box.shape)) > max_voxels:
        factor *= 0.99
    return box.middle(shape)


def _keep(labels: np.ndarray, box: Box, scorer: Scorer, image_name: str, out: str) -> None:
    made_by = provenance("evaluate", None, image=image_name)
    with create_volume(out, np.uint64, Placement(box, scorer.voxel_size_zyx_nm, made_by)) as writer:
        writer.write(box, labels.astype(np.uint64))
