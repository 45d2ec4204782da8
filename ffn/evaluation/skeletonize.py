"""Stage `skeletonize`: skeletons of the bodies of the ground truth, for the expected run length."""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ffn.config import Mask
from ffn.errors import EvaluationError
from ffn.evaluation.config import SkeletonizeConfig
from ffn.evaluation.scoring import blocks_in
from ffn.evaluation.skeletons import Skeleton, Skeletons, join
from ffn.geometry import ZYX, Box, VoxelSize, zyx
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, add_job_options, forget_blocks, job_of, reduce_blocks
from ffn.io.masks import identities, mask_inputs, open_masked_truth
from ffn.io.volume import Volume, require_inside, require_other_file
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments, masks_from
from ffn.progress import track
from ffn.provenance import fingerprint, provenance

TEASAR = {"scale": 1.5, "const": 300.0}  # a branch is longer than 1.5 times the local radius plus 300 nm
READ_AT_ONCE = 256  # voxels along each axis, rounded down to whole steps

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Skeletonize the bodies of the ground truth, along which 'ffn evaluate --skeletons' measures run length."""
    add_volume_option(parser, "--labels", "bodies of the ground truth")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="skeletons to write")
    add_job_options(parser)
    add_masks_option(parser)
    add_options(parser, SkeletonizeConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config, masks = from_arguments(SkeletonizeConfig, arguments), masks_from(arguments)
    skeletonize(arguments.labels, arguments.out, config, arguments.box, masks, job_of(arguments))


def skeletonize(
    labels_spec: str,
    out: str | Path,
    config: SkeletonizeConfig,
    box: Box | None = None,
    masks: tuple[Mask, ...] = (),
    job: Job = WHOLE,
) -> Skeletons | None:
    """Skeletonize every body of a label volume, and write nodes and edges.

    Parameters
    ----------
    labels_spec : str
        Volume of integer labels.
    out : path
        HDF5 file to write, for ``ffn evaluate --skeletons``.
    config : SkeletonizeConfig
        Spacing, smallest body.
    box : Box, optional
        Part of the volume to skeletonize.
    masks : tuple of Mask
        Voxels that are not scored, so bodies have no skeleton there.
    job : Job
        Which blocks to thin, and whether to find the skeletons; see `ffn.io.blocks`.

    Returns
    -------
    Skeletons or None
        The skeletons; None if `job` does not finish.

    Raises
    ------
    EvaluationError
        If the volume has no voxel size.
    VolumeError
        If the volume cannot be read or has no integer type.

    Notes
    -----
    Method: TEASAR (Sato et al. 2000), implemented by kimimaro, on every n-th voxel of each axis. Each node is a voxel
    of its body. The last job holds the thinned volume in memory, 8 bytes for every cube with sides of `spacing_nm`: a
    skeleton in parts, or without the volume around its body, would be another one.
    """
    require_other_file(str(out), labels_spec, *(mask.path for mask in masks if mask.path))
    with open_masked_truth(labels_spec, masks) as volume:
        box = volume.box if box is None else box
        require_inside(volume, box)
        size = volume.voxel_size_zyx_nm
        if size is None:
            raise EvaluationError(
                f"{volume.name}: has no voxel size, it is needed to measure lengths. Ingest it with 'ffn ingest "
                "--voxel-size'"
            )
        step = step_for(config.spacing_nm, size, box.shape)
        blocks = blocks_in(box)
        key = fingerprint("skeletonize", None, **identities({"labels": labels_spec}, masks), box=box, step=step)

        def work(block: Box) -> Result:
            return {"labels": thin(volume, block, box, step)}

        results = reduce_blocks(str(out), blocks, work, key, job)
    if results is None:
        return None
    labels = assemble((each["labels"] for each in results), blocks, box, step)
    skeletons = join(_trace(labels, box, step, size, config))
    if not len(skeletons.edges):
        log.warning("no body in %s has a skeleton: no connected piece has %d voxels", box, config.min_voxels)
    skeletons.write(out, provenance("skeletonize", config, labels=labels_spec, box=box, **mask_inputs(masks)))
    forget_blocks(str(out))
    log.info("%d skeletons, %.1f µm", len(np.unique(skeletons.owners)), skeletons.edge_lengths_nm().sum() / 1000)
    return skeletons


def _trace(
    labels: np.ndarray, box: Box, step_zyx: ZYX, voxel_size_zyx_nm: VoxelSize, config: SkeletonizeConfig
) -> Iterator[Skeleton]:
    """Yield the skeletons of all bodies, by ascending id."""
    import kimimaro

    spacing = np.array(step_zyx) * np.array(voxel_size_zyx_nm)
    found = kimimaro.skeletonize(
        np.asfortranarray(labels.astype(np.uint64)),
        teasar_params=TEASAR,
        anisotropy=tuple(spacing.tolist()),
        dust_threshold=math.ceil(config.min_voxels / math.prod(step_zyx)),
        fill_holes=False,
        progress=False,
        parallel=1,
    )
    first = np.array(box.start) + np.array(step_zyx) // 2
    for owner in sorted(found):
        voxels = np.rint(found[owner].vertices / spacing).astype(np.int64) * np.array(step_zyx) + first
        yield Skeleton(int(owner), (voxels + 0.5) * np.array(voxel_size_zyx_nm), found[owner].edges)


def step_for(spacing_nm: float, voxel_size_zyx_nm: VoxelSize, shape_zyx: ZYX) -> ZYX:
    """Return how many voxels along each axis fit into `spacing_nm`, at least 1 and at most all of a thin stack's."""
    sides = zip(voxel_size_zyx_nm, shape_zyx, strict=True)
    return zyx(min(n, max(1, math.floor(spacing_nm / side + 1e-9))) for side, n in sides)


def read_thinned(volume: Volume, box: Box, step_zyx: ZYX) -> np.ndarray:
    """Read one voxel of every `step_zyx` voxels, the middle one."""
    blocks = list(box.blocks(zyx(s * max(1, READ_AT_ONCE // s) for s in step_zyx)))
    parts = (thin(volume, block, box, step_zyx) for block in track(blocks, len(blocks), "read labels"))
    return assemble(parts, blocks, box, step_zyx)


def thin(volume: Volume, block: Box, box: Box, step_zyx: ZYX) -> np.ndarray:
    """Read the part of the result of `read_thinned` that lies in a block of `box`."""
    axes = zip(_kept(box, step_zyx), block.start, block.stop, strict=True)
    return volume.read(block)[np.ix_(*(kept[(kept >= start) & (kept < stop)] - start for kept, start, stop in axes))]


def assemble(parts: Iterable[np.ndarray], blocks: Sequence[Box], box: Box, step_zyx: ZYX) -> np.ndarray:
    """Return the result of `read_thinned` from that of `thin` for blocks that tile `box`."""
    axes = _kept(box, step_zyx)
    thinned = np.zeros(0)
    for block, part in zip(blocks, parts, strict=True):
        if not thinned.size:
            thinned = np.zeros([len(kept) for kept in axes], part.dtype)
        first = [int(np.searchsorted(kept, start)) for kept, start in zip(axes, block.start, strict=True)]
        thinned[tuple(slice(a, a + n) for a, n in zip(first, part.shape, strict=True))] = part
    return thinned


def _kept(box: Box, step_zyx: ZYX) -> list[np.ndarray]:
    """Return the coordinates along each axis of the voxels that `read_thinned` reads."""
    return [np.arange(a + s // 2, b, s) for a, b, s in zip(box.start, box.stop, step_zyx, strict=True)]
