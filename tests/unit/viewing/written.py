"""Volumes, meshes and skeletons without an export around them."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from ffn.io.atomic import write_json
from ffn.io.block_log import BlockLogs
from ffn.viewing import blockwise, meshes, ome_zarr, precomputed, skeletons
from ffn.viewing.pieces import Pieces


def write_volume(path, encoding, scales, read, threads=1):
    """Write all mips of a precomputed volume."""
    precomputed.create(path, encoding, scales)
    write_mips(precomputed.pyramid(path, encoding, scales, read), threads)


def write_image(group, dtype, downsample, scales, read, threads=1):
    """Write all mips of an OME-Zarr image."""
    ome_zarr.create(group, dtype, scales)
    write_mips(ome_zarr.pyramid(group, dtype, downsample, scales, read), threads)
    ome_zarr.write_image_group(group, downsample, scales)


def write_mips(pyramid, threads):
    for mip in range(len(pyramid.scales)):
        shards = pyramid.shards(mip)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(shards.work, shards.blocks))


def write_meshes(layer, mip, scale, segment_ids, empty_ids=(), processes=1):
    """Write meshes, also empty ones."""
    made, ids = partial(meshes.surfaces_in, layer, mip, scale, sorted_ids(segment_ids)), [*segment_ids, *empty_ids]
    sharding = write_pieces(layer, "mesh", meshes, made, partial(meshes.write_meshes, scale), scale, ids, processes)
    write_json(layer / "mesh/info", meshes.mesh_info(sharding))


def write_skeletons(layer, mip, scale, segment_ids, empty_ids=(), processes=1):
    """Write skeletons, also empty ones."""
    made, ids = partial(skeletons.skeletons_in, layer, mip, scale, sorted_ids(segment_ids)), [*segment_ids, *empty_ids]
    join = partial(skeletons.write_skeletons, None)
    sharding = write_pieces(layer, "skeletons", skeletons, made, join, scale, ids, processes)
    write_json(layer / "skeletons/info", skeletons.skeleton_info(sharding))


def write_pieces(layer, name, module, make, join, scale, ids, processes):
    work, pieces = layer / "work", Pieces(layer / "work/pieces", module.blocks_of(scale.box))
    made = done(work, pieces.made_by("pieces", make), processes)
    index = done(work, pieces.sorted_by_shard("index", made, sorted_ids(ids)))[0]
    done(work, pieces.joined_by("joined", layer / name, index, partial(join, index["sharding"])), processes)
    shutil.rmtree(work)
    return index["sharding"]


def done(folder, blocks, processes=1):
    """Do the work on a list of blocks, and return the results."""
    logs = BlockLogs(folder / blocks.name, {}, blocks.blocks)
    with blockwise.processes(processes) as pool:
        logs.run(blocks.work, pool=pool, workers=processes)
    return logs


def sorted_ids(ids):
    return np.array(sorted(ids), np.uint64)
