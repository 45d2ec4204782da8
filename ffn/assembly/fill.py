"""Assign unsegmented voxels (membranes, borders, specks) to the segments around them."""

from __future__ import annotations

import argparse
import logging

import numpy as np

from ffn import options
from ffn.assembly.contacts import Scene, open_scene
from ffn.config import FillConfig, Mask
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io import blocks
from ffn.io.create import volume_name
from ffn.io.masks import identities, mask_inputs
from ffn.io.shards import Shards
from ffn.io.volume import Placement, file_of, require_other_file, voxel_size_of
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

CONTEXT = 2.0  # halo in units of the maximum distance; floods meet along membranes, which may come from farther away
TRUNCATE = 4.0  # radius of the Gaussian, standard deviations


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Assign unsegmented voxels to the segments around them, by a seeded watershed of the smoothed image.

    The input is not changed. Voxels beyond the maximum distance stay unsegmented.
    """
    options.add_volume_option(parser, "--segmentation", "labels")
    options.add_volume_option(parser, "--image", "raw image")
    options.add_volume_option(parser, "--out", "uint64 filled segmentation")
    options.add_masks_option(parser)
    blocks.add_job_options(parser)
    options.add_options(parser, FillConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config, masks = options.from_arguments(FillConfig, arguments), options.masks_from(arguments)
    fill(arguments.segmentation, arguments.image, arguments.out, config, masks, blocks.job_of(arguments))


def fill(
    segmentation_spec: str,
    image_spec: str,
    out_spec: str,
    config: FillConfig,
    masks: tuple[Mask, ...] = (),
    job: blocks.Job = blocks.WHOLE,
) -> None:
    """Write a copy of a segmentation with its gaps filled.

    Tiles of ``config.block_size_zyx``, counted from the first voxel, are filled one by one; shards and jobs do not
    change them. A tile is read with a halo of twice the maximum distance. A watershed has no strict reach, so the
    border between two segments may still depend on the tiles: on FIB-25 with 100 nm, 0.3 % of the filled voxels did
    with tiles of 128³, which have twice as many borders as those of 256³; 0.2 % with twice the halo, 0.8 % with half
    of it. The set of segments and, without masks, the set of filled voxels never depend on it.

    Parameters
    ----------
    segmentation_spec : str
        Labels, 0 where nothing was segmented.
    image_spec : str
        Raw image; covers the labels.
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET``, uint64.
    config : FillConfig
        Maximum distance, smoothing, block size.
    masks : tuple of Mask
        Voxels that are not filled.
    job : Job
        Which blocks to write, see `ffn.io.blocks`.

    Raises
    ------
    VolumeError
        If the image does not cover the segmentation or has other voxels, or the output would overwrite one of them.
    """
    require_other_file(out_spec, segmentation_spec, image_spec)
    inputs = {"segmentation": segmentation_spec, "image": image_spec}
    with open_scene(segmentation_spec, image_spec, masks) as scene:
        voxel_size = voxel_size_of(scene.segmentation)
        if config.max_distance_nm < min(voxel_size):
            log.warning(
                "%s: max_distance_nm, %g nm, is less than the smallest side of a voxel (%g nm), so nothing is filled",
                *(out_spec, config.max_distance_nm, min(voxel_size)),
            )
        record = provenance("fill", config, **inputs, **mask_inputs(masks))
        key = fingerprint("fill", config, **identities(inputs, masks))
        tiles, name = Shards(scene.segmentation.box, config.block_size_zyx), volume_name(out_spec)

        def work(block: Box, out: blocks.Writers) -> None:
            for tile in tiles.touched_by(block):
                part = tile.intersect(block)
                filled = _filled_tile(scene, tile, voxel_size, config)
                out[name].write(part, filled[part.slices(tile.start)])

        placement = Placement(scene.segmentation.box, voxel_size, record)
        blocks.map_blocks(file_of(out_spec), {name: np.uint64}, placement, work, key, job)


def fill_gaps(
    labels: np.ndarray,
    image: np.ndarray,
    voxel_size_zyx_nm: VoxelSize,
    config: FillConfig,
    masked: np.ndarray | None = None,
) -> np.ndarray:
    """Fill the gaps of `labels` by a seeded watershed of the image.

    Parameters
    ----------
    labels : uint64 ndarray of shape (Z, Y, X)
        0 marks the gaps.
    image : ndarray of shape (Z, Y, X)
        Grey levels. Membranes are dark, and the floods of two segments meet on the darkest line between them.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel.
    config : FillConfig
        Maximum distance from a segment, smoothing.
    masked : bool ndarray of shape (Z, Y, X), optional
        Gaps that stay gaps.

    Returns
    -------
    uint64 ndarray of shape (Z, Y, X)
        Segmented voxels keep their ids. Voxels beyond the maximum distance from every segment stay 0.
    """
    from scipy import ndimage
    from skimage.segmentation import watershed

    if not labels.any():
        return labels
    gaps = labels == 0
    flooded = _within(gaps, config.max_distance_nm, voxel_size_zyx_nm)
    if masked is not None:
        flooded &= ~masked
    if not (flooded & gaps).any():
        return labels
    flooded &= ndimage.binary_dilation(gaps)  # the gaps and their rims; flooding whole segments only costs time
    height = smoothed(image, config.sigma_nm, voxel_size_zyx_nm)
    np.negative(height, out=height)
    ids, indices = np.unique(labels[flooded], return_inverse=True)  # ids[0] is 0; watershed markers have 32 bits
    markers = np.zeros(labels.shape, np.int32)
    markers[flooded] = indices
    return np.where(gaps, ids[watershed(height, markers, mask=flooded)], labels)


def with_halo(tile: Box, config: FillConfig, voxel_size_zyx_nm: VoxelSize) -> Box:
    """Return what is read to fill a tile; it may reach beyond the volume."""
    reach_nm = CONTEXT * config.max_distance_nm + TRUNCATE * config.sigma_nm
    return tile.grow(zyx(np.ceil([reach_nm / side for side in voxel_size_zyx_nm])))


def _within(gaps: np.ndarray, distance_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return which voxels are at most so far from one that is no gap, bool."""
    import edt

    squares = edt.edtsq(gaps, anisotropy=voxel_size_zyx_nm, order="C", parallel=1)
    return squares <= distance_nm**2 * (1 + 1e-5)  # float32 sums of squares differ by their order


def smoothed(image: np.ndarray, sigma_nm: float, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
    """Return the image (float32) smoothed by a Gaussian that has the same length on each axis."""
    from scipy import ndimage

    sigma = [sigma_nm / side for side in voxel_size_zyx_nm]
    return ndimage.gaussian_filter(image.astype(np.float32), sigma, truncate=TRUNCATE)


def _filled_tile(scene: Scene, tile: Box, voxel_size: VoxelSize, config: FillConfig) -> np.ndarray:
    """Read a tile with its halo and fill it."""
    outer = with_halo(tile, config, voxel_size).intersect(scene.segmentation.box)
    masked = scene.masks.read(outer) if scene.masks else None
    filled = fill_gaps(scene.segmentation.read(outer), scene.image.read(outer), voxel_size, config, masked)
    return filled[tile.slices(outer.start)]
