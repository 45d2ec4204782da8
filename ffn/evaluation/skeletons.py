"""Skeletons of the ground truth, in our files or SWC, and how far one can trace along them before the first error."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ffn.errors import EvaluationError
from ffn.geometry import Box, VoxelSize
from ffn.io import hdf5
from ffn.io.faults import unreadable

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


def join(skeletons: Iterator[Skeleton] | list[Skeleton]) -> Skeletons:
    """Combine the skeletons of single bodies."""
    nodes, edges, owners, first = [np.zeros((0, 3))], [np.zeros((0, 2), np.int64)], [np.zeros(0, np.uint64)], 0
    for one in skeletons:
        nodes.append(np.asarray(one.nodes_zyx_nm, np.float64).reshape(-1, 3))
        edges.append(np.asarray(one.edges, np.int64).reshape(-1, 2) + first)
        owners.append(np.full(len(nodes[-1]), one.owner, np.uint64))
        first += len(nodes[-1])
    return Skeletons(np.concatenate(nodes), np.concatenate(edges), np.concatenate(owners))


def read_skeletons(path: str | Path, voxel_size_zyx_nm: VoxelSize | None = None) -> Skeletons:
    """Read skeletons of the ground truth.

    Parameters
    ----------
    path : path
        A file of ``ffn skeletonize``, an SWC file or a folder of them (x, y, z in nm).
    voxel_size_zyx_nm : tuple of float, optional
        Of the segmentation. It reveals skeletons in µm.

    Returns
    -------
    Skeletons
        Empty only if ``ffn skeletonize`` found no body large enough.

    Raises
    ------
    EvaluationError
        If a folder has no skeletons, a file is damaged, or most edges are far shorter than a voxel.
    """
    path = Path(path)
    if not _is_swc(path):
        arrays, _ = hdf5.read_arrays(path, EvaluationError)
        if not arrays.keys() >= set(DATASETS):
            raise EvaluationError(f"{path}: has {sorted(arrays)}, expected {DATASETS}, as 'ffn skeletonize' writes")
        return Skeletons(*(arrays[name] for name in DATASETS))
    skeletons = join(_read_swc(_swc_files(path)))
    _require_usable(skeletons, path, voxel_size_zyx_nm)
    return skeletons


def check_skeletons(path: str | Path, voxel_size_zyx_nm: VoxelSize) -> None:
    """Refuse skeletons that `read_skeletons` would refuse, as far as the first SWC file or other headers tell."""
    path = Path(path)
    if not path.exists():
        raise EvaluationError(f"{path}: does not exist, expected an SWC file or a folder of them")
    if _is_swc(path):
        paths = _swc_files(path)
        first = join(_read_swc(paths[:1]))
        if len(first.edges) or len(paths) < 2:
            _require_usable(first, path, voxel_size_zyx_nm)


def _is_swc(path: Path) -> bool:
    return path.is_dir() or path.suffix.lower() == SWC


def _require_usable(skeletons: Skeletons, path: Path, voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Refuse no edges, and coordinates in another unit."""
    if not len(skeletons.edges):
        raise EvaluationError(f"{path}: has no skeletons, expected SWC files")
    usual = float(np.median(skeletons.edge_lengths_nm()))
    if voxel_size_zyx_nm and usual < min(voxel_size_zyx_nm) / SHORTEST:
        found = f"{path}: its edges are {usual:.2g} nm long (median), voxels {voxel_size_zyx_nm} nm"
        raise EvaluationError(f"{found}, expected coordinates in nm. If they are in µm, multiply them by 1000")


def _swc_files(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.suffix.lower() == SWC) if place.is_dir() else [place]


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
