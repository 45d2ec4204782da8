"""Multi-resolution Neuroglancer meshes of segments, made block by block and joined shard by shard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.geometry import ZYX, Box, add, divide_up, zyx
from ffn.io.atomic import write_json
from ffn.progress import track
from ffn.viewing.blockwise import spread
from ffn.viewing.mips import Scale
from ffn.viewing.multires import EMPTY_MESH, QUANTIZATION_BITS, encode_mesh
from ffn.viewing.precomputed import open_scale
from ffn.viewing.shards import Item, plan_shards, shard_path, shards_of, write_shard
from ffn.viewing.surfaces import Piece, block_pieces, surface

BLOCK_ZYX: ZYX = (128, 128, 128)  # voxels of the mip, about; 32 bytes for each, with the surfaces of FIB-25
PIECES = "mesh-pieces"  # folder with the surfaces of blocks, removed at the end
BYTES_PER_TRIANGLE = 1.5  # encoded, for one of marching cubes; 1.1 to 1.7 on FIB-25; decides how many shards there are


def write_meshes(
    layer: Path, mip: int, scale: Scale, segment_ids: list[int], empty_ids: Sequence[int] = (), processes: int = 1
) -> None:
    """Write the meshes of segments into the folder ``mesh`` of a label volume, or complete what a killed call wrote.

    Memory, for each process: one block, or the segments of one shard. Surfaces of blocks wait on disk, and 40 bytes in
    memory for each. The same voxels give the same bytes, however they are cut.

    Parameters
    ----------
    layer : Path
        Folder of the volume.
    mip : int
        Mip to read.
    scale : Scale
        Box and voxel size of that mip.
    segment_ids : list of int
        Segments to mesh. A segment without voxels at this mip gets an empty mesh.
    empty_ids : sequence of int
        Further segments that get an empty mesh. Neuroglancer reports an error for a missing mesh, and its screenshots
        would wait for it forever.
    processes : int
        Number of blocks, then of shards, processed in parallel.
    """
    folder, pieces = layer / "mesh", layer / PIECES
    for each in (folder, pieces):
        each.mkdir(parents=True, exist_ok=True)
    cells = list(enumerate(_cells(scale.box)))
    work = partial(_write_pieces, layer, mip, scale, np.array(sorted(segment_ids), np.uint64))
    for _ in track(spread(work, cells, processes), len(cells), f"{layer.name} surfaces"):
        pass
    index = _read_index(pieces, len(cells))
    ids = np.array([*segment_ids, *empty_ids], np.uint64)
    sharding = plan_shards(len(ids), int(BYTES_PER_TRIANGLE * index["triangles"].sum()))
    tasks = list(_tasks(sharding, ids, index))
    write = partial(_write_shard, layer, scale, sharding)
    for _ in track(spread(write, tasks, processes), len(tasks), f"{layer.name} meshes", "shard"):
        pass
    info = {
        "@type": "neuroglancer_multilod_draco",
        "vertex_quantization_bits": QUANTIZATION_BITS,
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "lod_scale_multiplier": 1.0,
        "sharding": sharding,
    }
    shutil.rmtree(pieces)
    write_json(folder / "info", info)


def _cells(box: Box) -> Iterator[Box]:
    """Cut the cells of a volume into blocks of equal size. A cell has the place of its first voxel, even outside."""
    every = Box(box.grow((1, 1, 1)).start, box.stop)
    counts = zyx(max(1, round(n / wanted)) for n, wanted in zip(box.shape, BLOCK_ZYX, strict=True))
    yield from every.blocks(divide_up(every.shape, counts))


INDEX = np.dtype([("id", "<u8"), ("block", "<i8"), ("place", "<i8"), ("vertices", "<i8"), ("triangles", "<i8")])


def _write_pieces(layer: Path, mip: int, scale: Scale, wanted: np.ndarray, numbered: tuple[int, Box]) -> None:
    """Write the surfaces of one block, and then where in the file they are, unless it has been done."""
    number, cells = numbered
    path = layer / PIECES / f"{number}"
    if path.with_suffix(".npy").exists():
        return
    voxels = Box(cells.start, add(cells.stop, (1, 1, 1)))  # those of the last cells, too; 0 outside the volume
    inside = voxels.intersect(scale.box)
    labels = np.zeros(voxels.shape, np.uint64)
    labels[inside.slices(voxels.start)] = open_scale(layer, mip)[inside.slices()].read().result()
    rows, place = [], 0
    with path.open("wb") as file:
        for segment_id, piece in block_pieces(labels, voxels.start, wanted):
            rows.append((segment_id, number, place, len(piece.vertices), len(piece.faces)))
            place += file.write(piece.vertices.astype("<i4").tobytes() + piece.faces.astype("<u4").tobytes())
    temporary = path.with_suffix(".part")
    with temporary.open("wb") as file:
        np.save(file, np.array(rows, INDEX))
    temporary.rename(path.with_suffix(".npy"))


def _read_index(pieces: Path, num_blocks: int) -> np.ndarray:
    parts = [np.load(pieces / f"{number}.npy") for number in range(num_blocks)]
    return np.concatenate([np.empty(0, INDEX), *parts])


class _Task(NamedTuple):
    """A shard to write: its number, its segments, and where the pieces of these are."""

    shard: int
    ids: np.ndarray
    rows: np.ndarray


def _tasks(sharding: dict[str, Any], ids: np.ndarray, index: np.ndarray) -> Iterator[_Task]:
    index = index[np.argsort(index["id"], kind="stable")]
    shards, of_rows = shards_of(sharding, ids), shards_of(sharding, index["id"])
    by_shard, rows_by_shard = np.argsort(shards, kind="stable"), np.argsort(of_rows, kind="stable")
    shards, of_rows = shards[by_shard], of_rows[rows_by_shard]
    for shard in np.unique(shards).tolist():
        own, own_rows = (slice(*np.searchsorted(all_of, [shard, shard + 1])) for all_of in (shards, of_rows))
        yield _Task(shard, ids[by_shard[own]], index[rows_by_shard[own_rows]])


def _write_shard(layer: Path, scale: Scale, sharding: dict[str, Any], task: _Task) -> None:
    """Write the meshes of one shard, unless it has been done."""
    path = shard_path(layer / "mesh", sharding, task.shard)
    if path.exists():
        return
    items: dict[int, Item] = dict.fromkeys(task.ids.tolist(), EMPTY_MESH)
    found, firsts = np.unique(task.rows["id"], return_index=True)
    for segment_id, rows in zip(found.tolist(), np.split(task.rows, firsts[1:]), strict=False):  # none: one empty part
        mesh, origin = surface([_read_piece(layer, row) for row in rows], scale.voxel_size_zyx_nm)
        if len(mesh.faces):
            items[segment_id] = encode_mesh(mesh, origin.tolist(), min(scale.voxel_size_zyx_nm))
    write_shard(path, sharding, items)


def _read_piece(layer: Path, row: np.void) -> Piece:
    num_vertices, num_triangles = int(row["vertices"]), int(row["triangles"])
    path, count = layer / PIECES / str(row["block"]), 3 * (num_vertices + num_triangles)
    numbers = np.fromfile(path, "<u4", count, offset=int(row["place"]))
    return Piece(numbers[: 3 * num_vertices].view("<i4").reshape(-1, 3), numbers[3 * num_vertices :].reshape(-1, 3))
