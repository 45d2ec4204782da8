"""Measure what tiling costs: reconciled subvolumes against the same box segmented in one piece.

    ffn segment --image raw.zarr --model model/ --box 0:112,0:112,0:112 --out whole.zarr
    ffn segment --image raw.zarr --model model/ --box 0:112,0:112,0:112 --size 80 80 80 --overlap 48 48 48 --out parts/
    python benchmarks/tiling.py parts/*.zarr --whole whole.zarr --truth labels.zarr
    python benchmarks/tiling.py --tiled agglomerated.zarr --whole agglomerated-whole.zarr --truth labels.zarr

Reconciles the subvolumes with the given options, or takes a finished volume (`--tiled`), as after agglomeration. Prints
the VOI (in bits, over the voxels that both label) between the two segmentations, and between each and the ground truth.
Of subvolumes, then counts unions, that is, matches of ids of two subvolumes, and those that merge bodies: on both
sides, at least 100 voxels have a ground truth, more than half of these belong to one body, and the two bodies differ.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import numpy as np

from ffn.assembly.config import ReconcileConfig
from ffn.assembly.reconcile import matches, reconcile
from ffn.assembly.subvolumes import LocalIds, Subvolumes, SubvolumeTables, open_subvolumes
from ffn.evaluation.scores import score
from ffn.evaluation.scoring import tabulate
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Volume
from ffn.options import add_box_option, add_options, from_arguments

MIN_TRUTH_VOXELS = 100
MIN_PURITY = 0.5
BLOCK = (128, 128, 128)


def main(words: Sequence[str] | None = None) -> None:
    """Reconcile, compare and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subvolumes", nargs="*", metavar="NAME.zarr", help="stores of ffn segment")
    parser.add_argument("--tiled", metavar="VOLUME", help="what was made of subvolumes, instead of their stores")
    parser.add_argument("--whole", required=True, metavar="VOLUME", help="the box segmented in one piece")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="ground truth, 0 is unknown")
    add_box_option(parser)
    add_options(parser, ReconcileConfig)
    arguments = parser.parse_args(words)
    if bool(arguments.subvolumes) == bool(arguments.tiled):
        parser.error("expected either stores of ffn segment or --tiled")
    config = from_arguments(ReconcileConfig, arguments)
    specs = arguments.subvolumes
    with tempfile.TemporaryDirectory() as folder, open_volume(arguments.truth) as truth:
        tiled = arguments.tiled or f"{folder}/tiled.zarr"
        if specs:
            reconcile(specs, tiled, config)
        with open_volume(arguments.whole) as a, open_volume(tiled) as b:
            print_scores(a, b, truth, arguments.box or b.box)
        if specs:
            unions, judged, merging = count_unions(specs, truth, config)
            print(f"unions: {unions}; of them with ground truth on both sides: {judged}; merging bodies: {merging}")


def print_scores(whole: Volume, tiled: Volume, truth: Volume, box: Box) -> None:
    """Print a table of the three comparisons, each over the part of `box` that both volumes cover."""
    print(f"{'':18} {'VOI':>7} {'split':>7} {'merge':>7} {'covered':>8} {'segments':>9}")
    rows = [("tiled : whole", whole, tiled), ("whole : truth", truth, whole), ("tiled : truth", truth, tiled)]
    for name, first, second in rows:
        table = tabulate(first.read, second.read, box.intersect(first.box).intersect(second.box), BLOCK)
        scores = score(table, "foreground")
        figures = " ".join(f"{scores[key]:7.4f}" for key in ("voi", "voi_split", "voi_merge"))
        known = table.keep(table.a != 0)
        covered = known.foreground().num_voxels / known.num_voxels
        print(f"{name:18} {figures} {covered:8.3f} {len(np.unique(table.b[table.b != 0])):9}")


def count_unions(specs: Sequence[str], truth: Volume, config: ReconcileConfig) -> tuple[int, int, int]:
    """Count the matches of reconciliation, those that the ground truth can judge, and those that it calls wrong."""
    subvolumes = open_subvolumes(specs)
    tables = SubvolumeTables(subvolumes.look_at(index) for index in range(len(specs)))
    nodes = LocalIds.of(tables)
    batches = tables.batches("claims")
    joins = np.concatenate([matches(subvolumes.tiling, nodes, *batch, config) for batch in batches])
    bodies = majority_bodies(subvolumes, nodes, truth)
    of = bodies[joins]
    judged = of[(of != 0).all(axis=1)]
    return len(of), len(judged), int((judged[:, 0] != judged[:, 1]).sum())


def majority_bodies(subvolumes: Subvolumes, nodes: LocalIds, truth: Volume) -> np.ndarray:
    """Return the body of the majority of each node's ground truth, 0 if there is little of it or no majority."""
    bodies = np.zeros(len(nodes.ids), np.uint64)
    for index, box in enumerate(subvolumes.tiling):
        table = tabulate(truth.read, subvolumes.volume(index).read, box.intersect(truth.box), BLOCK).foreground()
        node = nodes.lookup.find(np.full(len(table.b), index), table.b)
        total = np.bincount(node, table.voxels, len(nodes.ids))[node]
        chosen = (total >= MIN_TRUTH_VOXELS) & (table.voxels > MIN_PURITY * total)
        bodies[node[chosen]] = table.a[chosen]
    return bodies


if __name__ == "__main__":
    main()
