r"""Cut mergers that are made on purpose: pairs of touching bodies of a truth become one supervoxel each.

    python benchmarks/cuts.py --image raw/ --truth labels.h5:stack --model model/ --box 0:85,0:250,0:250

Each of --number random pairs, of bodies of 5000 voxels or more that share 150 faces, gets one point on each side: the
deepest voxel near the middle of the contact. Bodies are their largest connected pieces in the box. Prints the share of
the voxels of both bodies that are right after the cut, without the network (from both points alone) and with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ffn.assembly.components import label_pieces
from ffn.assembly.config import Agglomeration
from ffn.assembly.contacts import Scene, faces_in
from ffn.assembly.cut import claims_of, middle, rows_of_parts
from ffn.assembly.given import CorrectionError, WithCuts
from ffn.assembly.resegment import Judge, best_seed, measured_side
from ffn.geometry import ZYX, Box, subtract, zyx
from ffn.inference.inputs import FloodInputs
from ffn.io.open import open_truth, open_volume
from ffn.io.volume import Converted, Derived, Volume
from ffn.options import box_value

LEAST_FACES, LEAST_VOXELS, NEAR, ENOUGH = 150, 5000, (20, 20, 20), 0.95


class Pieces(Derived):
    """The largest connected piece in a box of each label."""

    def __init__(self, source: Volume, box: Box) -> None:
        super().__init__(source)
        self.box = box
        labels = source.read(box)
        pieces = label_pieces(labels)
        sizes = np.bincount(pieces.ravel())
        of_piece = np.zeros(len(sizes), labels.dtype)
        of_piece[pieces] = labels
        order = np.lexsort((-sizes, of_piece))
        largest = order[np.unique(of_piece[order], return_index=True)[1]]
        self._labels = np.where(np.isin(pieces, largest), labels, 0)

    def _read(self, box: Box) -> np.ndarray:
        return self._labels[box.slices(self.box.start)]


def mergers(truth: Volume, number: int, rng_seed: int) -> Iterator[tuple[int, int, list[list[ZYX]]]]:
    """Yield pairs of touching bodies, with a point on each side."""
    labels, box = truth.read(), truth.box
    bodies, voxels = np.unique(labels, return_counts=True)
    large = bodies[(voxels >= LEAST_VOXELS) & (bodies > 0)]
    faces = [(ids, places) for ids, places, _ in faces_in(labels, box, box)]
    ids, places = (np.concatenate(column) for column in zip(*faces, strict=True))
    pairs, of, counts = np.unique(np.sort(ids, axis=1), axis=0, return_inverse=True, return_counts=True)
    chosen = np.flatnonzero((counts >= LEAST_FACES) & np.isin(pairs, large).all(axis=1))
    for pair in np.random.default_rng(rng_seed).permutation(chosen)[:number]:
        contact = places[of.ravel() == pair]
        near = zyx(contact[np.square(contact - np.median(contact, axis=0)).sum(axis=1).argmin()])
        around = Box.around(near, NEAR).intersect(box)
        found, at, inside = labels[around.slices(box.start)], subtract(near, around.start), Box.from_shape(around.shape)
        sides = [measured_side(found == body, at, inside, (1, 1, 1), inside) for body in pairs[pair]]
        seeds = [best_seed(side.merit, inside) for side in sides]
        a, b = pairs[pair].tolist()
        yield a, b, [[zyx(np.add(seed, around.start))] for seed in seeds if seed is not None]


def joined(ids: np.ndarray, a: int, b: int) -> np.ndarray:
    """Return labels with `a` instead of `b`."""
    return np.where(ids == np.uint64(b), np.uint64(a), ids)


def main() -> None:
    """Print a line for each pair, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("image", "truth", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--box", type=box_value, required=True)
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--rng-seed", type=int, default=1)
    parser.add_argument("--radius", type=int, default=40)
    parser.add_argument("--max-fovs", type=int, default=200)
    parser.add_argument("--without-network", action="store_true")
    arguments = parser.parse_args()
    config = Agglomeration(window_radius_zyx=(arguments.radius,) * 3, max_fovs=arguments.max_fovs)
    network = FloodInputs(arguments.image, arguments.model).network(config)
    shares: dict[str, list[float]] = {"points": [], "network": []}
    with open_volume(arguments.image) as image, open_truth(arguments.truth) as labels:
        truth = Pieces(labels, arguments.box)
        judge = Judge(Scene(truth, image), network, config)
        lanes = None if arguments.without_network else judge.open_lanes(1)
        for a, b, sides in mergers(truth, arguments.number, arguments.rng_seed):
            merged = Converted(truth, partial(joined, a=a, b=b))
            merged.voxel_size_zyx_nm = (10.0, 10.0, 10.0)
            judge = replace(judge, scene=Scene(merged, image))
            frame = judge.frame(middle(sides))
            claims = {"points": [np.zeros(frame.box.shape, bool)] * 2}
            if lanes:
                claims["network"] = claims_of(judge, frame, a, sides, lanes)
            for name, each in claims.items():
                shares[name].append(right(judge, (a, b), sides, each))
            print(a, b, *(f"{name} {shares[name][-1]:.3f}" for name in claims), flush=True)
    for name, found in shares.items():
        print(f"{name}: {sum(share >= ENOUGH for share in found)} of {len(found)}, median {np.median(found):.3f}")


def right(judge: Judge, pair: tuple[int, int], sides: list[list[ZYX]], claims: list[np.ndarray]) -> float:
    """Return the share of both bodies with the id of its point."""
    try:
        rows = rows_of_parts(judge, judge.frame(middle(sides)), pair[0], sides, claims)
    except CorrectionError:
        return 0.0
    merged = judge.scene.segmentation
    assert isinstance(merged, Derived)
    found, truth = WithCuts(merged, rows), merged.source.read()
    after, ids = found.read(), [int(found.read(Box.around(points[0])).item()) for points in sides]
    good = sum(np.count_nonzero((truth == body) & (after == own)) for body, own in zip(pair, ids, strict=True))
    return good / np.count_nonzero(np.isin(truth, pair))


if __name__ == "__main__":
    main()
