"""`ffn convert`: copy a volume as it is, between stores and HDF5 files."""

from __future__ import annotations

import argparse
from functools import partial

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.open import open_mip, readable_formats
from ffn.io.shards import shard_shape
from ffn.io.store import create_volume
from ffn.io.volume import Placement, require_inside, require_other_file, split_spec
from ffn.options import add_box_option, whole_number
from ffn.progress import track


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Copy a volume to NAME.zarr or FILE.h5:DATASET. Voxels, place, voxel size and provenance stay as they are.

    example:
      ffn convert results/demo/segmentation/phantom/filled.zarr filled.h5:segmentation
    """
    parser.add_argument("volume", metavar="VOLUME", help=f"volume to read: {readable_formats()}")
    parser.add_argument("out", metavar="OUT", help="volume to write, NAME.zarr or FILE.h5:DATASET")
    add_box_option(parser)
    parser.add_argument(
        "--mip", type=whole_number, default=0, help="resolution of a volume that has several (default: 0, the full one)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    convert(arguments.volume, arguments.out, arguments.box, arguments.mip)


def convert(spec: str, out_spec: str, box: Box | None = None, mip: int = 0) -> None:
    """Copy a volume without its tables."""
    require_other_file(out_spec, spec)
    with open_mip(spec, mip) as volume:
        box = box or volume.box
        require_inside(volume, box)
        size = volume.voxel_size_zyx_nm
        if size is None:
            raise VolumeError(f"{volume.name}: has no voxel size, expected one. Run ffn ingest with --voxel-size Z Y X")
        placement = Placement(box, size, volume.provenance)
        blocks = list(box.blocks(shard_shape(box.shape, volume.dtype.itemsize)))
        path, dataset = split_spec(out_spec)
        create = partial(hdf5.create_volume, path, dataset) if dataset else partial(create_volume, out_spec)
        with create(volume.dtype, placement) as out:
            for block in track(blocks, len(blocks), "convert"):
                out.write(block, volume.read(block))
