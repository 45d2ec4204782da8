"""Stage `membrane`: edges of an image and the distance to them, block by block."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from ffn import edges
from ffn.config import MembraneConfig
from ffn.geometry import Box, VoxelSize
from ffn.io.hdf5_volume import create_volumes
from ffn.io.open import open_volume
from ffn.io.volume import Placement, Volume, require_image, require_inside
from ffn.progress import track
from ffn.provenance import provenance

log = logging.getLogger(__name__)


def membrane(image_spec: str, out_path: str | Path, config: MembraneConfig, box: Box | None = None) -> None:
    """Write the edges of an image and every voxel's distance to them.

    Blocks are read with so much context that the result is the one of the whole volume at once, bit for bit;
    a box gives the part of that result inside it.

    Parameters
    ----------
    image_spec : str
        uint8, uint16 or floating-point image.
    out_path : path
        HDF5 file; gets `edges` (uint8, 1 on an edge) and `distance` (float32, in units of the smallest voxel
        side, at most ``config.max_distance``).
    config : MembraneConfig
        Blur, largest distance, block size.
    box : Box, optional
        What to write; default all of the image.

    Raises
    ------
    VolumeError
        If the image cannot be read, has another type, or the box is outside of it.
    """
    with open_volume(image_spec) as image:
        require_image(image)
        box = box or image.box
        require_inside(image, box)
        voxel_size = _voxel_size(image)
        placement = Placement(box, voxel_size, provenance("membrane", config, image=image_spec, box=box))
        with create_volumes(out_path, {"edges": np.uint8, "distance": np.float32}, placement) as out:
            blocks = list(box.blocks(config.block_size_zyx))
            for block in track(blocks, len(blocks), "membrane"):
                block_edges, block_distance = membrane_block(image, block, voxel_size, config)
                out["edges"].write(block, block_edges)
                out["distance"].write(block, block_distance)


def membrane_block(
    image: Volume, block: Box, voxel_size_zyx: VoxelSize, config: MembraneConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Compute one block as if the whole image had been.

    Parameters
    ----------
    image : Volume
        Read around the block as far as the result depends on it.
    block : Box
        Inside the image.
    voxel_size_zyx : tuple of float
        Sides of a voxel in any unit.
    config : MembraneConfig
        Blur and largest distance.

    Returns
    -------
    bool ndarray, float32 ndarray
        Edges and saturated distance, of the shape of the block.
    """
    # Only the true border of the volume is mirrored: elsewhere the margin that the filters spoil is cut off.
    near = block.grow(edges.steps_within(config.max_distance, voxel_size_zyx)).intersect(image.box)
    margin = edges.reach(config.sigma)
    seen = near.grow((margin, margin, margin)).intersect(image.box)
    near_edges = edges.edges(image.read(seen), config.sigma)[near.slices(seen.start)]
    inside = block.slices(near.start)
    distance = edges.distance(near_edges, voxel_size_zyx)[inside]
    return near_edges[inside], np.minimum(distance, np.float32(config.max_distance))


def _voxel_size(image: Volume) -> VoxelSize:
    size = image.voxel_size_zyx_nm
    if size is None:
        log.warning("%s: has no voxel size, distances are measured as if its voxels were cubes", image.name)
        return 1.0, 1.0, 1.0
    return size
