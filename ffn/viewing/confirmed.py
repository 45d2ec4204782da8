"""Labels to train on: the objects of a run that people have confirmed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import ndimage

from ffn.assembly.given import CorrectionError
from ffn.config import PART_ZYX
from ffn.geometry import Box
from ffn.io.open import identity
from ffn.io.store import create_volume
from ffn.io.volume import IGNORED, Placement, voxel_size_of
from ffn.progress import track
from ffn.provenance import provenance
from ffn.viewing.inputs import read_groups
from ffn.viewing.queue import Queue, QueueInputs

log = logging.getLogger(__name__)


def write_confirmed(inputs: QueueInputs, objects: Sequence[int], out: str | Path) -> Box:
    """Write the confirmed objects of a run as labels, and return their box: that of the segmentation.

    All other segments are 0: as a confirmed object is complete, no voxel of them belongs to it. Voxels of no segment,
    and those of other segments at the border, are `IGNORED`, because nobody has told where the border is.

    Parameters
    ----------
    inputs : QueueInputs
        The run, with all answers, which it has applied.
    objects : sequence of int
        Ids of more objects that a person has found to be right.
    out : path
        ``NAME.zarr`` of uint64.

    Raises
    ------
    CorrectionError
        If nothing is confirmed, or an answer is not applied.
    """
    if wrong := [each for each in objects if not 0 < each < int(IGNORED)]:
        raise CorrectionError(f"{inputs.mapping}: has no object {wrong[0]}, expected its id")
    confirmed = np.array(sorted(Queue(inputs).confirmed() | set(objects)), np.uint64)
    if not len(confirmed):
        found = f"{inputs.mapping}: no object is confirmed, expected answers on all its doubtful contacts"
        raise CorrectionError(f"{found}. Answer more (ffn view RUN --queue FILE.csv), apply them, or name objects")
    groups = read_groups(inputs.mapping)
    voxels = np.zeros(len(confirmed), np.int64)
    with inputs.open_base() as base:
        made_by = provenance("labels", None, segmentation=inputs.segmentation, mapping=identity(inputs.mapping))
        blocks = list(base.box.blocks(PART_ZYX))
        with create_volume(str(out), np.uint64, Placement(base.box, voxel_size_of(base), made_by)) as writer:
            for block in track(blocks, len(blocks), "labels"):
                seen = block.grow((1, 1, 1)).intersect(base.box)
                segments, index = np.unique(base.read(seen).astype(np.uint64), return_inverse=True)
                labels = labels_of(groups.of(segments)[index], confirmed)[block.slices(seen.start)]
                writer.write(block, labels)
                ids, counts = np.unique(labels[np.isin(labels, confirmed)], return_counts=True)
                voxels[np.searchsorted(confirmed, ids)] += counts
            if not voxels.all():
                raise CorrectionError(f"{inputs.mapping}: has no object {confirmed[voxels == 0][0]}, expected its id")
        log.info("%s: %d objects, %d of %d voxels", out, len(confirmed), voxels.sum(), base.box.num_voxels)
        return base.box


def labels_of(objects: np.ndarray, confirmed: np.ndarray) -> np.ndarray:
    """Return the labels of a box of objects.

    Examples
    --------
    >>> labels_of(np.array([7, 7, 0, 0, 8, 8, 9, 9], np.uint64), np.array([8])).astype(np.int64).tolist()
    [0, 0, -1, -1, 8, 8, -1, 0]
    """
    is_body = np.isin(objects, confirmed)
    labels = np.where(is_body, objects, np.uint64(0))
    labels[((objects == 0) | ndimage.binary_dilation(is_body)) & ~is_body] = IGNORED
    return labels
