"""Split-biased consensus: voxels stay together only where two segmentations agree that they belong together."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator

import numpy as np

from ffn.assembly.candidates import candidates, halo_of, merged_faces, touching
from ffn.assembly.carried import Tables, read_rows
from ffn.config import ConsensusConfig
from ffn.contingency import ContingencyTable, RowLookup, count_pairs, find_runs, largest_parts, merge_tables
from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.io.create import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement, Volume, require_labels, require_other_file, require_same_voxel_size, voxel_size_of
from ffn.options import add_options, from_arguments
from ffn.progress import track
from ffn.provenance import provenance

log = logging.getLogger(__name__)

MAX_ID = 2**63 - 1  # tables are signed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Split-biased consensus of two segmentations: voxels stay together only where both agree.

    It is meant for two runs with different seed orders, which rarely make the same merger. Agglomeration can join what
    the consensus splits too much. Ids are those of A; parts split off from a segment of A get new ids.
    """
    parser.add_argument(
        "a", metavar="A", help="labels, NAME.zarr or FILE.h5:DATASET; the result keeps its ids and background"
    )
    parser.add_argument("b", metavar="B", help="labels of the same box")
    parser.add_argument(
        "--out", required=True, metavar="VOLUME", help="uint64 segmentation, NAME.zarr or FILE.h5:DATASET"
    )
    add_options(parser, ConsensusConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    consensus(arguments.a, arguments.b, arguments.out, from_arguments(ConsensusConfig, arguments))


def consensus(a_spec: str, b_spec: str, out_spec: str, config: ConsensusConfig) -> None:
    """Write the consensus of two segmentations of the same box; see `fragment_ids` for its definition.

    Both are read three times, block by block: to count pairs of ids, to find fragments that touch, and to write. Memory
    grows with the pairs of ids that occur and the pairs of fragments that touch. The result does not depend on the
    block size.

    Parameters
    ----------
    a_spec, b_spec : str
        Segmentations; 0 is background. Ids come from the first.
    out_spec : str
        ``NAME.zarr`` or ``FILE.h5:DATASET``, uint64. It also gets the table ``overlaps`` of `candidates`, from which
        agglomeration starts, and those ``origins`` of the first segmentation whose ids remain.
    config : ConsensusConfig
        Smallest fragment, largest gap, block size.

    Raises
    ------
    VolumeError
        If the two cover different boxes, differ in voxel size or have ids beyond int64, or if the output would
        overwrite one of them.
    """
    require_other_file(out_spec, a_spec, b_spec)
    with open_volume(a_spec) as a, open_volume(b_spec) as b:
        _require_same_place(a, b)
        blocks = list(a.box.blocks(config.block_size_zyx))
        read = track(blocks, len(blocks), "count")
        table = merge_tables(count_pairs(*voxels) for _, *voxels in _both(a, b, read))
        _require_small_ids(a, table.a)
        _require_small_ids(b, table.b)
        ids = fragment_ids(table, config.min_fragment_size)
        lookup = RowLookup(table.a, table.b)
        tables = _tables(a, b, table, ids, lookup, config)
        record = provenance("consensus", config, a=a_spec, b=b_spec)
        placement = Placement(a.box, voxel_size_of(a), record)
        with create_volume(out_spec, np.uint64, placement, tables) as writer:
            for block, of_a, of_b in _both(a, b, track(blocks, len(blocks), "write")):
                writer.write(block, ids[_rows(lookup, of_a, of_b)])
    log.info("%s", _summary(table, ids))


def fragment_ids(table: ContingencyTable, min_fragment_size: int) -> np.ndarray:
    """Choose the id of every fragment, the voxels that share a pair of ids.

    Parameters
    ----------
    table : ContingencyTable
        Voxels of each pair (a, b).
    min_fragment_size : int
        Fragments with fewer voxels become 0.

    Returns
    -------
    uint64 ndarray of shape (N,)
        The largest fragment of each a keeps its id; of equal fragments, the one with the smallest b. All others get new
        ids after the largest a, in order of a and b. Background of a stays background. Background of b counts as one
        more object, so voxels that only a has are kept.

    Raises
    ------
    VolumeError
        If the new ids do not fit into int64.

    Notes
    -----
    Source: Januszewski et al. 2018, Methods, "oversegmentation consensus". Background is treated as in the published
    code.
    """
    if not len(table.voxels):
        return np.zeros(0, np.uint64)
    keeps_id = np.zeros(len(table.voxels), bool)
    keeps_id[largest_parts(table.a, table.b, table.voxels)] = True
    remains = (table.a != 0) & (table.voxels >= min_fragment_size)
    is_new = remains & ~keeps_id
    highest, num_new = int(table.a.max()), int(is_new.sum())
    if highest + num_new > MAX_ID:
        raise VolumeError(
            f"consensus: {num_new} new ids after {highest} exceed {MAX_ID}, smaller ids are needed. Renumber A"
        )
    ids = np.where(remains, table.a, 0)
    ids[is_new] = np.uint64(highest) + np.arange(1, num_new + 1, dtype=np.uint64)
    return ids


def _rows(lookup: RowLookup, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the row (int64) of the pair of ids at every voxel."""
    starts, lengths = find_runs(a, b)
    rows = lookup.find(a.ravel()[starts], b.ravel()[starts])
    return np.repeat(rows, lengths).reshape(a.shape)


def _both(a: Volume, b: Volume, blocks: Iterator[Box]) -> Iterator[tuple[Box, np.ndarray, np.ndarray]]:
    return ((block, a.read(block), b.read(block)) for block in blocks)


def _tables(
    a: Volume, b: Volume, table: ContingencyTable, ids: np.ndarray, lookup: RowLookup, config: ConsensusConfig
) -> Tables:
    """Return the tables of the consensus: candidates for agglomeration, and origins if the first input has them."""
    claims = (read_rows(volume.name, "overlaps", 6) for volume in (a, b))
    claims_a, claims_b = (np.empty((0, 6), np.int64) if rows is None else rows for rows in claims)
    origins = read_rows(a.name, "origins", 6)
    blocks = list(a.box.blocks(config.block_size_zyx))
    faces = merged_faces(_faces(a, b, ids, lookup, config, track(blocks, len(blocks), "touch")))
    tables = {"overlaps": candidates(table, ids, faces, claims_a, claims_b)}
    if origins is not None:
        tables["origins"] = origins[np.isin(origins[:, 0], ids.astype(np.int64))]
    return tables


def _faces(
    a: Volume, b: Volume, ids: np.ndarray, lookup: RowLookup, config: ConsensusConfig, blocks: Iterable[Box]
) -> Iterator[np.ndarray]:
    """Yield the faces between kept fragments in each block; fragments are labelled row + 1."""
    size = voxel_size_of(a)
    labels = np.where(ids == 0, 0, np.arange(1, len(ids) + 1)).astype(np.uint64)
    for block in blocks:
        outer = block.grow(halo_of(config.max_gap, size)).intersect(a.box)
        fragments = labels[_rows(lookup, a.read(outer), b.read(outer))]
        yield touching(fragments, block, outer, size, config.max_gap)


def _require_small_ids(volume: Volume, ids: np.ndarray) -> None:
    if len(ids) and ids.max() > MAX_ID:
        found = ids.max().astype(np.int64 if volume.dtype.kind == "i" else np.uint64)
        raise VolumeError(f"{volume.name}: has id {found}, expected ids from 0 to {MAX_ID}. Renumber it")


def _require_same_place(a: Volume, b: Volume) -> None:
    for volume in (a, b):
        require_labels(volume)
    if a.box != b.box:
        raise VolumeError(f"{b.name}: covers {b.box}, expected the box of {a.name}, {a.box}")
    require_same_voxel_size(b, a)


def _summary(table: ContingencyTable, ids: np.ndarray) -> str:
    numbers = (len(np.unique(column[column != 0])) for column in (table.a, table.b, ids))
    a, b, remaining = numbers
    dropped = int(table.voxels[(ids == 0) & (table.a != 0)].sum())
    return f"consensus of {a} and {b} segments: {remaining}; {dropped} voxels of small fragments dropped"
