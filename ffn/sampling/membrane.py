"""Stage `membrane`: find the edges of an image and the distance to them, block by block."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ffn import edges
from ffn.geometry import ZYX, Box, VoxelSize, add, steps_within, zyx
from ffn.io.blocks import WHOLE, Job, Writers, add_job_options, job_of, map_blocks
from ffn.io.open import identity, open_volume
from ffn.io.volume import Placement, Volume, require_image, require_inside, voxel_size_of
from ffn.options import add_box_option, add_options, add_volume_option, from_arguments
from ffn.provenance import fingerprint, provenance
from ffn.sampling.config import MEMBRANE_BLOCK_ZYX, MembraneConfig

MAX_DISTANCE_NM = 160.0  # distances are clipped here, our choice
USUAL_MARGIN = 50  # voxels that a block needs on each side, where they are of 10 nm
LEAST_BLOCK = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Detect membranes: edges of the image, and the distance of every voxel to the nearest edge.

    example:
      ffn membrane --image raw.zarr --out membrane.zarr
    """
    add_volume_option(parser, "--image", "uint8, uint16 or float image")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="NAME.zarr", help="edges and distance to write")
    add_job_options(parser)
    add_options(parser, MembraneConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = from_arguments(MembraneConfig, arguments)
    membrane(arguments.image, arguments.out, config, arguments.box, job_of(arguments))


def membrane(
    image_spec: str, out_path: str | Path, config: MembraneConfig, box: Box | None = None, job: Job = WHOLE
) -> None:
    """Write the edges of an image, and the distance of every voxel to them.

    Blocks are read with a margin, so that neither blocks nor box change the result: it equals that of the whole volume,
    bit for bit.

    ``NAME.zarr`` has `edges` (uint8, 1 on an edge) and `distance` (float32, nm, at most `MAX_DISTANCE_NM`).

    Raises
    ------
    VolumeError
        If the image cannot be read or has another type, or the box reaches outside it.
    """
    with open_volume(image_spec) as image:
        require_image(image)
        box = box or image.box
        require_inside(image, box)
        voxel_size = voxel_size_of(image)
        placement = Placement(box, voxel_size, provenance("membrane", config, image=image_spec, box=box))
        key = fingerprint("membrane", config, image=identity(image_spec), box=box)

        def work(shard: Box, out: Writers) -> None:
            for block in shard.blocks(block_shape(voxel_size, config)):
                block_edges, block_distance = membrane_block(image, block, voxel_size, config)
                out["edges"].write(block, block_edges)
                out["distance"].write(block, block_distance)

        map_blocks(str(out_path), {"edges": np.uint8, "distance": np.float32}, placement, work, key, job)


def block_shape(voxel_size_zyx_nm: VoxelSize, config: MembraneConfig) -> ZYX:
    """Return the size of a block that is as large with its margin as on voxels of 10 nm, but not below `LEAST_BLOCK`.

    Examples
    --------
    >>> [block_shape(size, MembraneConfig()) for size in ((10.0, 10.0, 10.0), (40.0, 4.0, 4.0))]
    [(256, 256, 256), (256, 110, 110)]
    """
    margin = add(steps_within(MAX_DISTANCE_NM, voxel_size_zyx_nm), edges.reach(voxel_size_zyx_nm, config.blur_nm))
    sides = zip(MEMBRANE_BLOCK_ZYX, margin, strict=True)
    return zyx(min(n, max(LEAST_BLOCK, n + 2 * (USUAL_MARGIN - more))) for n, more in sides)


def membrane_block(
    image: Volume, block: Box, voxel_size_zyx_nm: VoxelSize, config: MembraneConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Compute one block of the result for the whole image."""
    # Filters mirror the image at the border of what is read. Inside the volume, the margin that this spoils is cut off.
    near = block.grow(steps_within(MAX_DISTANCE_NM, voxel_size_zyx_nm)).intersect(image.box)
    seen = near.grow(edges.reach(voxel_size_zyx_nm, config.blur_nm)).intersect(image.box)
    near_edges = edges.edges(image.read(seen), voxel_size_zyx_nm, config.blur_nm)[near.slices(seen.start)]
    inside = block.slices(near.start)
    distance = edges.distance(near_edges, voxel_size_zyx_nm)[inside]
    return near_edges[inside], np.minimum(distance, np.float32(MAX_DISTANCE_NM))
