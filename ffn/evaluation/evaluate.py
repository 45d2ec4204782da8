"""The stage `evaluate`: score a segmentation, and a baseline beside it, against the truth."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.atomic import write_json
from ffn.config import EvaluateConfig
from ffn.contingency import ContingencyTable, count_pairs, merge_tables
from ffn.errors import EvaluationError
from ffn.evaluation.border import VoxelSize, read_without_border
from ffn.evaluation.scores import CONVENTIONS, summarize, worst_bodies
from ffn.geometry import ZYX, Box
from ffn.progress import track
from ffn.provenance import provenance
from ffn.volume import Placement, Volume, create_volume, open_volume, require_inside, require_labels

Read = Callable[[Box], np.ndarray]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Baseline:
    """What the segmentation is compared with: nothing, a given segmentation, or a watershed of the image.

    Parameters
    ----------
    image : str, optional
        Volume to segment by watershed.
    segmentation : str, optional
        Volume to score instead.
    out : str, optional
        ``FILE.h5:DATASET`` to keep the best watershed in.
    """

    image: str | None = None
    segmentation: str | None = None
    out: str | None = None


class _Place(NamedTuple):
    """Where volumes are compared."""

    box: Box
    voxel_size_zyx_nm: VoxelSize


def evaluate(
    segmentation_spec: str,
    truth_spec: str,
    out: str | Path,
    config: EvaluateConfig,
    box: Box | None = None,
    baseline: Baseline = Baseline(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Score a segmentation where it overlaps the truth, and write the scores as JSON.

    Parameters
    ----------
    segmentation_spec, truth_spec : str
        Volumes of integer labels.
    out : path
        JSON file; its keys are described in `ffn.evaluation.scores.summarize` and `worst_bodies`.
    config : EvaluateConfig
        Block size and border band.
    box : Box, optional
        Part of the volumes to look at.
    baseline : Baseline, optional
        Scored on the same voxels, under the key ``baseline``.

    Returns
    -------
    dict
        What was written.

    Raises
    ------
    EvaluationError
        If the volumes and `box` have no voxel in common, the truth is empty there, or `out` cannot be
        written.
    VolumeError
        If a volume is missing or does not hold labels.
    """
    with _writable(out), open_volume(truth_spec) as truth, open_volume(segmentation_spec) as segmentation:
        require_labels(truth)
        require_labels(segmentation)
        place = _Place(common_box(segmentation, truth, box), _voxel_size(truth, segmentation, config))
        result: dict[str, Any] = {
            "box": str(place.box),
            "conventions": {name: rule.text for name, rule in CONVENTIONS.items()},
        }
        result.update(_score(segmentation.read, truth, place, config))
        if baseline.image or baseline.segmentation:
            result["baseline"] = _score_baseline(baseline, truth, place, config)
        inputs = {"segmentation": segmentation_spec, "truth": truth_spec, **_given(baseline)}
        result["provenance"] = provenance("evaluate", config, **inputs)
        write_json(out, result)
    return result


def common_box(segmentation: Volume, truth: Volume, box: Box | None) -> Box:
    """Return the voxels that both volumes have, inside `box` where one is given.

    Raises
    ------
    EvaluationError
        If there are none.
    """
    common = segmentation.box.intersect(truth.box)
    if common.is_empty:
        raise EvaluationError(
            f"{segmentation.name}: lies at {segmentation.box} and the truth {truth.name} at {truth.box}, "
            "expected voxels in common. Check the offsets with 'ffn info'"
        )
    if box is not None and common.intersect(box).is_empty:
        raise EvaluationError(
            f"--box: {box} has no voxel of {common}, where segmentation and truth overlap. Choose one inside"
        )
    return common if box is None else common.intersect(box)


def tabulate(truth: Read, segmentation: Read, box: Box, block_size_zyx: ZYX) -> ContingencyTable:
    """Count the pairs of ids in `box`, block by block.

    Parameters
    ----------
    truth, segmentation : callable
        Return the labels of a box.
    box : Box
        Where to compare.
    block_size_zyx : tuple of int
        Voxels read at a time; the result does not depend on it.
    """
    blocks = list(box.blocks(block_size_zyx))
    return merge_tables(
        count_pairs(truth(block), segmentation(block)) for block in track(blocks, len(blocks), "compare")
    )


def _score(read: Read, truth: Volume, place: _Place, config: EvaluateConfig) -> dict[str, Any]:
    """Score the labels that `read` returns."""
    table = tabulate(truth.read, read, place.box, config.block_size_zyx)
    if not table.truth.any():
        raise EvaluationError(
            f"{truth.name}: holds no labelled voxel in {place.box}, expected some. Choose another --box"
        )
    if not config.border_nm:
        return {**summarize(table, table), **worst_bodies(table)}

    def inner_truth(block: Box) -> np.ndarray:
        return read_without_border(truth, block, config.border_nm, place.voxel_size_zyx_nm)

    return {
        **summarize(table, tabulate(inner_truth, read, place.box, config.block_size_zyx)),
        **worst_bodies(table),
    }


def _score_baseline(baseline: Baseline, truth: Volume, place: _Place, config: EvaluateConfig) -> dict[str, Any]:
    """Score the given segmentation, or the best watershed of the image, where `place` says."""
    if baseline.segmentation:
        with open_volume(baseline.segmentation) as volume:
            require_labels(volume)
            require_inside(volume, place.box)
            return {"method": volume.name, **_score(volume.read, truth, place, config)}
    from ffn.evaluation.baseline import best_watershed

    with open_volume(str(baseline.image)) as image:
        require_inside(image, place.box)
        labels, sweep = best_watershed(image.read(place.box), truth.read(place.box), place.voxel_size_zyx_nm)
    if baseline.out:
        _keep(labels, baseline, place)
    scores = _score(lambda block: labels[block.slices(place.box.start)], truth, place, config)
    return {"method": "watershed", "settings": sweep[0]["settings"], "sweep": sweep, **scores}


def _given(baseline: Baseline) -> dict[str, str]:
    """Return the inputs of the baseline, for the provenance."""
    inputs = {"image": baseline.image, "baseline": baseline.segmentation}
    return {name: spec for name, spec in inputs.items() if spec}


def _keep(labels: np.ndarray, baseline: Baseline, place: _Place) -> None:
    made_by = provenance("evaluate", None, image=baseline.image)
    with create_volume(str(baseline.out), np.uint64, Placement(place.box, place.voxel_size_zyx_nm, made_by)) as writer:
        writer.write(place.box, labels.astype(np.uint64))


def _voxel_size(truth: Volume, segmentation: Volume, config: EvaluateConfig) -> VoxelSize:
    """Voxel size of either volume; isotropic where neither knows, unless the border band needs it."""
    size = truth.voxel_size_zyx_nm or segmentation.voxel_size_zyx_nm
    if size is None and config.border_nm:
        raise EvaluationError(
            f"--border: {config.border_nm} nm cannot be measured, {truth.name} and {segmentation.name} "
            "have no attribute voxel_size_nm. Bring one of them in with 'ffn ingest --voxel-size'"
        )
    if segmentation.voxel_size_zyx_nm not in (None, size):
        log.warning("voxel sizes differ: truth %s nm, segmentation %s nm", size, segmentation.voxel_size_zyx_nm)
    return size or (1.0, 1.0, 1.0)


@contextlib.contextmanager
def _writable(out: str | Path) -> Iterator[None]:
    """Complain about an output that cannot be written, before the work where that can be known."""
    path = Path(out).absolute()
    folder = next(parent for parent in path.parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        found = "is a folder" if path.is_dir() else f"{folder} is no folder that can be written to"
        raise EvaluationError(f"{out}: {found}, expected the name of a new file. Choose another --out")
    try:
        yield
    except PermissionError as reason:
        raise EvaluationError(f"{out}: cannot be written ({reason}). Choose another --out") from None
