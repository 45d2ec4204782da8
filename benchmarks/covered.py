r"""Measure how foreground scores depend on coverage: drop voxels of low POM from a segmentation, score what is left.

    cd results/fib25-whole
    python ../../benchmarks/covered.py segmentation/fib25/subvolumes/*.zarr \
        --segmentation segmentation/fib25/agglomerated.zarr --image volumes/fib25/raw.zarr \
        --truth volumes/fib25/labels.zarr --max-distance 200

Takes the POM of the subvolumes that the segmentation was made of, the larger one where they overlap. For every least
POM, prints the share of the labelled voxels that keep a segment, VOI (bits) and ARE over these, and VOI and ARE over
all voxels after the gaps are filled.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

import numpy as np

from ffn.assembly.config import FillConfig
from ffn.assembly.fill import fill
from ffn.evaluation.scores import score
from ffn.evaluation.scoring import tabulate
from ffn.geometry import Box
from ffn.io.open import open_segmentation, open_truth, open_volume
from ffn.io.store import create_volume
from ffn.io.volume import Placement, Read, voxel_size_of
from ffn.options import add_box_option, add_options, from_arguments

BLOCK = (128, 128, 128)


def main(words: Sequence[str] | None = None) -> None:
    """Drop, fill, score, and print a line for every least POM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subvolumes", nargs="+", metavar="NAME.zarr", help="stores of ffn segment")
    parser.add_argument("--segmentation", required=True, metavar="VOLUME", help="what was made of them, not filled")
    parser.add_argument("--image", required=True, metavar="VOLUME", help="raw image, to fill")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="ground truth, 0 is unknown")
    text = "least POM of a voxel (default: 0 0.7 0.8 0.9)"
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0, 0.7, 0.8, 0.9], metavar="P", help=text)
    add_box_option(parser)
    add_options(parser, FillConfig)
    arguments = parser.parse_args(words)
    config = from_arguments(FillConfig, arguments)
    print("least POM  covered  VOI foreground  ARE foreground  VOI filled  ARE filled")
    with open_truth(arguments.truth) as truth, open_segmentation(arguments.segmentation) as segmentation:
        box = truth.box.intersect(segmentation.box)
        box = box.intersect(arguments.box) if arguments.box else box
        for threshold in arguments.thresholds:
            with tempfile.TemporaryDirectory() as folder:
                kept, filled = f"{folder}/kept.zarr", f"{folder}/filled.zarr"
                size = voxel_size_of(segmentation)
                with create_volume(kept, np.uint64, Placement(segmentation.box, size, {})) as out:
                    for block in segmentation.box.blocks(BLOCK):
                        is_sure = best_pom(arguments.subvolumes, block) >= round(255 * threshold)
                        out.write(block, np.where(is_sure, segmentation.read(block), 0))
                fill(filled, config, segmentation=kept, image=arguments.image)
                print(f"{threshold:9.2f}  {line(truth.read, kept, filled, box)}", flush=True)


def best_pom(stores: Sequence[str], box: Box) -> np.ndarray:
    """Return the largest POM of the subvolumes that hold a voxel, uint8."""
    best = np.zeros(box.shape, np.uint8)
    for store in stores:
        with open_volume(f"{store}/probability") as pom:
            shared = box.intersect(pom.box)
            if not shared.is_empty:
                there = shared.slices(box.start)
                best[there] = np.maximum(best[there], pom.read(shared))
    return best


def line(truth: Read, kept: str, filled: str, box: Box) -> str:
    """Return coverage and scores before and after filling."""
    with open_segmentation(kept) as before, open_segmentation(filled) as after:
        table = tabulate(truth, before.read, box, BLOCK)
        covered = table.foreground().num_voxels / table.keep(table.a != 0).num_voxels
        own, whole = score(table, "foreground"), score(tabulate(truth, after.read, box, BLOCK), "all")
    return f"{covered:7.3f}  {own['voi']:14.3f}  {own['are']:14.3f}  {whole['voi']:10.3f}  {whole['are']:10.3f}"


if __name__ == "__main__":
    main()
