"""Skeletons of the ground truth: stage `skeletonize`, our files and SWC, and how far one can trace without an error."""

from __future__ import annotations

import argparse
import json
import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.assembly.components import connected_roots
from ffn.config import Mask
from ffn.errors import EvaluationError
from ffn.evaluation.config import SkeletonizeConfig
from ffn.geometry import ZYX, Box, Grid, VoxelSize, cut, divide_up, zyx
from ffn.io import hdf5
from ffn.io.atomic import unreadable
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, add_job_options, forget_blocks, job_of, reduce_blocks
from ffn.io.masks import identities, mask_inputs, open_masked_truth
from ffn.io.volume import Volume, require_inside, require_other_file
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments, masks_from
from ffn.progress import track
from ffn.provenance import fingerprint, provenance

SHORTEST = 4  # the median edge of skeletons is at least a voxel divided by this
DATASETS = ("nodes_zyx_nm", "edges", "owners")
SWC = ".swc"  # suffix, in any case
SWC_COLUMNS = ("node", "type", "x", "y", "z", "radius", "parent")  # in nm; roots have -1, or 0 where no node is 0


@dataclass(frozen=True)
class Skeletons:
    """Skeletons of many bodies. Voxel v spans v … v + 1 voxel sizes from the origin of the full volume."""

    nodes_zyx_nm: np.ndarray  # float64, (N, 3)
    edges: np.ndarray  # int64, (E, 2): pairs of nodes of the same body
    owners: np.ndarray  # uint64, (N,): body of each node

    def edge_lengths_nm(self) -> np.ndarray:
        """Return the length of every edge, float64 of shape (E,)."""
        ends = self.nodes_zyx_nm[self.edges]
        return np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)

    def voxels_zyx(self, voxel_size_zyx_nm: VoxelSize) -> np.ndarray:
        """Return the voxel of every node, int64 of shape (N, 3)."""
        return np.floor(self.nodes_zyx_nm / np.array(voxel_size_zyx_nm)).astype(np.int64)

    def crop(self, box: Box, voxel_size_zyx_nm: VoxelSize) -> Skeletons:
        """Return the nodes inside `box`, and the edges between them."""
        return self.keep(box.holds(self.voxels_zyx(voxel_size_zyx_nm)))

    def keep(self, nodes: np.ndarray) -> Skeletons:
        """Return the nodes that are True in `nodes`, bool of shape (N,), and the edges between them."""
        kept = self.edges[nodes[self.edges].all(axis=1)]
        return Skeletons(self.nodes_zyx_nm[nodes], (np.cumsum(nodes) - 1)[kept], self.owners[nodes])

    def write(self, path: str | Path, provenance: dict[str, Any]) -> None:
        """Write an HDF5 file with a dataset for each of the arrays."""
        hdf5.write_arrays(path, vars(self), {"provenance": json.dumps(provenance, sort_keys=True)})


class Skeleton(NamedTuple):
    """Nodes (zyx, nm) and edges of one body."""

    owner: int
    nodes_zyx_nm: np.ndarray
    edges: np.ndarray


def join(skeletons: Iterable[Skeleton]) -> Skeletons:
    """Combine the skeletons of single bodies."""
    nodes, edges, owners, first = [np.zeros((0, 3))], [np.zeros((0, 2), np.int64)], [np.zeros(0, np.uint64)], 0
    for one in skeletons:
        nodes.append(np.asarray(one.nodes_zyx_nm, np.float64).reshape(-1, 3))
        edges.append(np.asarray(one.edges, np.int64).reshape(-1, 2) + first)
        owners.append(np.full(len(nodes[-1]), one.owner, np.uint64))
        first += len(nodes[-1])
    return Skeletons(np.concatenate(nodes), np.concatenate(edges), np.concatenate(owners))


def read_skeletons(path: str | Path, voxel_size_zyx_nm: VoxelSize | None = None) -> Skeletons:
    """Read skeletons of the ground truth: a file of ``ffn skeletonize``, or SWC, one file or a folder (x, y, z in nm).

    The voxel size of the segmentation reveals skeletons in µm. They are empty only if ``ffn skeletonize`` found no body
    large enough.

    Raises
    ------
    EvaluationError
        If a folder has no skeletons, a file is damaged, or most edges are far shorter than a voxel.
    """
    path = Path(path)
    if not (path.is_dir() or path.suffix.lower() == SWC):
        arrays, _ = hdf5.read_arrays(path, EvaluationError)
        if not arrays.keys() >= set(DATASETS):
            raise EvaluationError(f"{path}: has {sorted(arrays)}, expected {DATASETS}, as 'ffn skeletonize' writes")
        return Skeletons(*(arrays[name] for name in DATASETS))
    files = sorted(each for each in path.iterdir() if each.suffix.lower() == SWC) if path.is_dir() else [path]
    skeletons = join(_read_swc(files))
    if not len(skeletons.edges):
        raise EvaluationError(f"{path}: has no skeletons, expected SWC files")
    usual = float(np.median(skeletons.edge_lengths_nm()))
    if voxel_size_zyx_nm and usual < min(voxel_size_zyx_nm) / SHORTEST:
        found = f"{path}: its edges are {usual:.2g} nm long (median), voxels {voxel_size_zyx_nm} nm"
        raise EvaluationError(f"{found}, expected coordinates in nm. If they are in µm, multiply them by 1000")
    return skeletons


def _read_swc(paths: Sequence[Path]) -> Iterator[Skeleton]:
    """Yield the skeletons of SWC files, whose owners are numbered from 1."""
    for owner, path in enumerate(paths, start=1):
        expected = f"lines of {', '.join(SWC_COLUMNS)}. Export the file again, or take it away"
        with unreadable(path, expected, EvaluationError), warnings.catch_warnings(action="ignore"):  # of no lines
            rows = np.loadtxt(path, usecols=range(len(SWC_COLUMNS)), ndmin=2, encoding="latin1")
        if not len(rows) or not np.isfinite(rows).all():
            found = "values that are not finite" if len(rows) else "no nodes"
            raise EvaluationError(f"{path}: has {found}, expected {expected}")
        numbers, parents = rows[:, 0].astype(np.int64), rows[:, 6].astype(np.int64)
        children = np.flatnonzero(parents >= (0 if 0 in numbers else 1))
        order = np.argsort(numbers, kind="stable")
        ends = order[np.searchsorted(numbers, parents[children], sorter=order).clip(max=len(rows) - 1)]
        lost = parents[children][numbers[ends] != parents[children]]
        if len(lost):
            raise EvaluationError(f"{path}: parent {lost[0]} is not a node of this file, {expected}")
        yield Skeleton(owner, rows[:, 4:1:-1], np.stack([children, ends], axis=1))


def expected_run_length(skeletons: Skeletons, segments: np.ndarray, tolerance_nm: float = 0.0) -> dict[str, Any]:
    """Compute the expected run length (ERL) of a segmentation along skeletons of the ground truth.

    Parameters
    ----------
    skeletons : Skeletons
        Nodes, edges and owners.
    segments : uint64 ndarray of shape (N,)
        Segment at each node; 0 is background.
    tolerance_nm : float
        A skeleton does not make a segment a merger if less than this length of it lies in the segment. 0 is the strict
        definition, in which a single node is enough.

    Returns
    -------
    dict
        ``erl_nm``, ``erl_truth_nm`` (of a perfect segmentation), ``nerl`` (their ratio), ``length_nm``,
        ``num_skeletons``, and ``shares`` of the length: ``correct``, ``split`` (the ends of an edge lie in different
        segments), ``omitted`` (an end lies in background) and ``merged`` (in a segment with several skeletons).

    Notes
    -----
    Source: Januszewski et al. 2018. Edges in a segment that contains nodes of two or more skeletons do not count as
    correct. Weighting skeletons by their lengths L gives ERL = Σ l² / Σ L, where l is the correct length of one
    skeleton in one segment.
    """
    lengths = skeletons.edge_lengths_nm()
    ends = segments[skeletons.edges]
    owners = skeletons.owners[skeletons.edges[:, 0]]
    omitted = (ends == 0).any(axis=1)
    split = ~omitted & (ends[:, 0] != ends[:, 1])
    whole = ~(omitted | split)
    pairs = np.unique(np.stack([segments, skeletons.owners])[:, segments != 0], axis=1)
    if tolerance_nm:
        pairs, shared = _shared(ends[whole, 0], owners[whole], lengths[whole])
        pairs = pairs[:, shared >= tolerance_nm]
    ids, counts = np.unique(pairs[0], return_counts=True)
    merged = whole & np.isin(ends[:, 0], ids[counts > 1])
    correct = whole & ~merged
    total = float(lengths.sum())
    erl = np.square(_shared(ends[correct, 0], owners[correct], lengths[correct])[1]).sum() / total
    erl_truth = np.square(_shared(owners, owners, lengths)[1]).sum() / total
    kinds = {"correct": correct, "split": split, "omitted": omitted, "merged": merged}
    return {
        "erl_nm": float(erl),
        "erl_truth_nm": float(erl_truth),
        "nerl": float(erl / erl_truth),
        "length_nm": total,
        "num_skeletons": len(np.unique(owners)),
        "shares": {name: float(lengths[chosen].sum()) / total for name, chosen in kinds.items()},
    }


def _shared(segments: np.ndarray, owners: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of segment and skeleton, and the length that each shares."""
    pairs, inverse = np.unique(np.stack([segments, owners]), axis=1, return_inverse=True)
    return pairs, np.bincount(inverse.ravel(), lengths, pairs.shape[1])


TEASAR = {"scale": 1.5, "const": 300.0}  # a branch is longer than 1.5 times the local radius plus 300 nm
READ_AT_ONCE = 256  # voxels along each axis, rounded down to whole steps
# Thinned voxels, 10 µm at 40 nm; our choice: smaller ones make longer skeletons. On 170×250×250 voxels of FIB-25, with
# blocks of 1.2 µm instead of one, 23 % longer, and the NERL of a segmentation was 0.710 instead of 0.701.
BLOCK_ZYX: ZYX = (256, 256, 256)
PIECES = ("bodies", "voxels", "nodes", "edges", "pieces")  # see `_trace`

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Skeletonize the bodies of the ground truth, along which 'ffn evaluate --skeletons' measures run length.

    example:
      ffn skeletonize --labels labels.zarr --out skeletons.h5
    """
    add_volume_option(parser, "--labels", "bodies of the ground truth")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="skeletons to write")
    add_job_options(parser)
    add_masks_option(parser)
    add_options(parser, SkeletonizeConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
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
    """Skeletonize every body of a label volume; write nodes and edges as HDF5, for ``ffn evaluate --skeletons``.

    Masked voxels are not scored, so bodies have no skeleton there. A job that does not join the skeletons of all blocks
    returns None.

    Raises
    ------
    EvaluationError
        If the volume has no voxel size.

    Notes
    -----
    Method: TEASAR (Sato et al. 2000), implemented by kimimaro, on every n-th voxel of each axis. Each node is a voxel
    of its body. In a box of several blocks, two pieces meet where the body crosses a face of a block; that a body along
    a face has a piece on each side makes such skeletons longer.
    """
    require_other_file(str(out), labels_spec, *(mask.path for mask in masks if mask.path))
    with open_masked_truth(labels_spec, masks) as volume:
        box = volume.box if box is None else box
        require_inside(volume, box)
        size = volume.voxel_size_zyx_nm
        if size is None:
            found = f"{volume.name}: has no voxel size, it is needed to measure lengths"
            raise EvaluationError(f"{found}. Ingest it with 'ffn ingest --voxel-size'")
        step = step_for(config.spacing_nm, size, box.shape)
        key = fingerprint("skeletonize", None, **identities({"labels": labels_spec}, masks), box=box, step=step)

        def work(block: Box) -> Result:
            return _trace(read_thinned(volume, block, step), block, box, step, size)

        results = reduce_blocks(str(out), blocks_in(box, step), work, key, job)
    if results is None:
        return None
    thinned = join_pieces(results, math.ceil(config.min_voxels / math.prod(step)))
    first = np.array(box.start) + np.array(step) // 2
    nodes = (thinned.nodes_zyx_nm * step + first + 0.5) * np.array(size)
    skeletons = Skeletons(nodes, thinned.edges, thinned.owners)
    if not len(skeletons.edges):
        log.warning("no body in %s has a skeleton: no connected piece has %d voxels", box, config.min_voxels)
    skeletons.write(out, provenance("skeletonize", config, labels=labels_spec, box=box, **mask_inputs(masks)))
    forget_blocks(str(out))
    log.info("%d skeletons, %.1f µm", len(np.unique(skeletons.owners)), skeletons.edge_lengths_nm().sum() / 1000)
    return skeletons


def blocks_in(box: Box, step_zyx: ZYX) -> Grid:
    """Cut `box` into blocks that include the first layer of the next, where kimimaro ends the paths of both."""
    ranges = cut(Box.from_shape(_thinned_shape(box, step_zyx)), block_shape(box, step_zyx)).ranges_zyx
    axes = zip(ranges, box.start, box.stop, step_zyx, strict=True)
    return Grid([[(a + i * s, min(a + (j + 1) * s, b)) for i, j in along] for along, a, b, s in axes])


def block_shape(box: Box, step_zyx: ZYX) -> ZYX:
    """Return the shape of the blocks without the layers that they share: about the same along each axis."""
    shape = _thinned_shape(box, step_zyx)
    return divide_up(shape, divide_up(shape, BLOCK_ZYX))


def _trace(labels: np.ndarray, block: Box, box: Box, step_zyx: ZYX, voxel_size_zyx_nm: VoxelSize) -> Result:
    """Return the skeletons of the connected pieces of a block, in thinned voxels of the box.

    ``bodies`` and ``voxels`` have a row for each piece, `Skeletons` of pieces are ``nodes``, ``edges`` and ``pieces``.
    """
    import cc3d
    import kimimaro

    spacing = np.array(step_zyx) * np.array(voxel_size_zyx_nm)
    pieces = cc3d.connected_components(np.asfortranarray(labels.astype(np.uint64)))
    found = kimimaro.skeletonize(
        pieces,
        teasar_params=TEASAR,
        anisotropy=tuple(spacing.tolist()),
        dust_threshold=0,
        fill_holes=False,
        progress=False,
        parallel=1,
    )
    bodies = np.zeros(int(pieces.max()) + 1, np.uint64)
    bodies[pieces] = labels
    own = pieces[Box.from_shape(block_shape(box, step_zyx)).slices()]
    first = (np.array(block.start) - box.start) // step_zyx
    made = join(Skeleton(n, np.rint(one.vertices / spacing) + first, one.edges) for n, one in sorted(found.items()))
    return {
        "bodies": bodies,
        "voxels": np.bincount(own.ravel(), minlength=len(bodies)),
        "nodes": made.nodes_zyx_nm.astype(np.int64),
        "edges": made.edges,
        "pieces": made.owners.astype(np.int64),
    }


def join_pieces(results: Iterable[Result], least_voxels: int) -> Skeletons:
    """Join the pieces of bodies that share a node, and leave out those that have few voxels together."""
    columns: dict[str, list[np.ndarray]] = defaultdict(list)
    num_pieces = num_nodes = 0
    for each in results:
        for name, values in each.items():
            columns[name].append(values + {"edges": num_nodes, "pieces": num_pieces}.get(name, 0))
        num_pieces += len(each["bodies"])
        num_nodes += len(each["nodes"])
    bodies, voxels, nodes, edges, pieces = (np.concatenate(columns[name]) for name in PIECES)
    ids, body = np.unique(bodies, return_inverse=True)
    rows = np.column_stack([body[pieces], nodes])
    numbers = np.ravel_multi_index(rows.T, rows.max(0, initial=0) + 1)  # np.unique of rows takes ten times as long
    _, firsts, places = np.unique(numbers, return_index=True, return_inverse=True)
    known = rows[firsts]
    links = np.column_stack([pieces, num_pieces + places])
    groups = connected_roots(num_pieces + len(known), links)
    sizes = np.bincount(groups[:num_pieces], voxels, len(groups))
    a, b = np.sort(places[edges], axis=1).T
    edges = np.column_stack(np.divmod(np.unique(a * len(known) + b), max(1, len(known))))
    joined = Skeletons(known[:, 1:].astype(np.float64), edges, ids[known[:, 0]])
    return joined.keep(sizes[groups[num_pieces:]] > least_voxels)


def step_for(spacing_nm: float, voxel_size_zyx_nm: VoxelSize, shape_zyx: ZYX) -> ZYX:
    """Return how many voxels along each axis fit into `spacing_nm`, at least 1 and at most all of a thin stack's."""
    sides = zip(voxel_size_zyx_nm, shape_zyx, strict=True)
    return zyx(min(n, max(1, math.floor(spacing_nm / side + 1e-9))) for side, n in sides)


def read_thinned(volume: Volume, box: Box, step_zyx: ZYX) -> np.ndarray:
    """Read one voxel of every `step_zyx` voxels, the middle one."""
    thinned = np.zeros(_thinned_shape(box, step_zyx), volume.dtype)
    blocks = list(box.blocks(zyx(s * max(1, READ_AT_ONCE // s) for s in step_zyx)))
    for block in track(blocks, len(blocks), "read labels"):
        part = volume.read(block)[tuple(slice(s // 2, None, s) for s in step_zyx)]
        first = zyx((np.array(block.start) - box.start) // step_zyx)
        thinned[Box.from_shape(part.shape, first).slices()] = part
    return thinned


def _thinned_shape(box: Box, step_zyx: ZYX) -> ZYX:
    """Return the shape of what `read_thinned` reads."""
    return zyx(-(-(n - s // 2) // s) for n, s in zip(box.shape, step_zyx, strict=True))
