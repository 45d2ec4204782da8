"""Measure what another contrast of the image costs, and how much of it normalisation takes back.

    ffn import-checkpoint model.ckpt-27465036 --deltas 12 12 12 --out model/
    ffn ingest raw/ --voxel-size 10 10 10 --out raw.zarr
    python benchmarks/contrast.py --image raw.zarr --truth labels.zarr --model model/ --box 0:100,60:172,60:172

Changes the contrast of the whole image, segments the box as the network would see it without and with normalisation,
and prints VOI (bits) against the ground truth, away from the border of the box, where no FOV reaches. The unmodified
image is the reference of `match`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ffn.config import ImageConfig, Normalize, SegmentConfig
from ffn.contingency import count_pairs
from ffn.evaluation.scores import score
from ffn.geometry import scale
from ffn.inference.inputs import SegmentInputs
from ffn.inference.segment import segment
from ffn.io.open import open_truth, open_volume
from ffn.io.store import create_volume
from ffn.io.volume import Placement, voxel_size_of
from ffn.model.normalize import normalize
from ffn.model.store import load_description, load_model, save_model
from ffn.model.tissue import survey_of
from ffn.options import add_box_option, add_options, from_arguments

METHODS: tuple[Normalize, ...] = ("training", "volume", "match")


def main() -> None:
    """Segment the box in every contrast, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", required=True, metavar="VOLUME", help="uint8 image that the model knows")
    parser.add_argument("--truth", required=True, metavar="VOLUME", help="ground truth, 0 is unknown")
    parser.add_argument("--model", required=True, metavar="DIR", help="trained model")
    parser.add_argument("--only", nargs="*", default=list(METHODS), metavar="METHOD", help="methods to try")
    parser.add_argument("--contrasts", nargs="*", default=list(CONTRASTS), metavar="NAME", help="contrasts to try")
    add_box_option(parser)
    add_options(parser, SegmentConfig)
    arguments = parser.parse_args()
    config = from_arguments(SegmentConfig, arguments)
    print(f"{'contrast':12} {'mean':>6} {'stddev':>6} {'normalize':>9} {'distance':>8} {'seen':>6} "
          f"{'VOI':>6} {'split':>6} {'merge':>6} {'VOI all':>7} {'covered':>7} {'segments':>8}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.contrasts:
            changed = write_changed(arguments.image, f"{folder}/{name}.zarr", CONTRASTS[name])
            for method in arguments.only:
                print(f"{name:12} {line(arguments, changed, method, config, folder)}", flush=True)


def equalised(voxels: np.ndarray) -> np.ndarray:
    """Return an image with every grey level equally often."""
    ranks = np.cumsum(np.bincount(voxels.ravel(), minlength=256)) / voxels.size
    return (255 * ranks)[voxels]


CONTRASTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unmodified": lambda voxels: voxels,
    "x1.6+10": lambda voxels: voxels * 1.6 + 10,
    "gamma0.7": lambda voxels: 255 * (voxels / 255) ** 0.7,
    "equalised": equalised,
}


def write_changed(image_spec: str, out_spec: str, change: Callable[[np.ndarray], np.ndarray]) -> str:
    """Write the image in another contrast, clipped to 8 bits."""
    with open_volume(image_spec) as image:
        voxels = np.clip(change(image.read()).round(), 0, 255).astype(np.uint8)
        with create_volume(out_spec, np.uint8, Placement(image.box, voxel_size_of(image))) as out:
            out.write(image.box, voxels)
    return out_spec


def line(arguments: argparse.Namespace, image_spec: str, method: Normalize, config: SegmentConfig, folder: str) -> str:
    """Normalise, segment and score; return the row of the table without its first column."""
    chosen, out = f"{folder}/normalization.json", f"{folder}/out.zarr"
    knowing = replace(load_model(arguments.model), histogram=survey_of(arguments.image).histogram)
    save_model(f"{folder}/model", knowing)
    normalize(image_spec, f"{folder}/model", chosen, ImageConfig(normalize=method))
    segment(SegmentInputs(image_spec, arguments.model, chosen), out, config, arguments.box)
    with open(chosen) as file:
        found = json.load(file)
    with open_volume(out) as segmentation, open_truth(arguments.truth) as truth:
        inner = segmentation.box.grow(scale(load_description(arguments.model).config.fov_radius_zyx, -1))
        return f"{described(found)} {scored(truth.read(inner), segmentation.read(inner))}"


def described(found: dict) -> str:
    """Return the columns about grey levels."""
    volume = found["volume"]
    figures = f"{volume['mean']:6.1f} {volume['stddev']:6.1f} {found['normalize']:>9}"
    return f"{figures} {found['distance']:8.2f} {found['seen_distance']:6.2f}"


def scored(truth: np.ndarray, segmentation: np.ndarray) -> str:
    """Return the columns about the segmentation."""
    table = count_pairs(truth, segmentation)
    foreground, everything = score(table, "foreground"), score(table, "all")
    covered = np.count_nonzero((truth > 0) & (segmentation > 0)) / np.count_nonzero(truth)
    figures = " ".join(f"{foreground[key]:6.3f}" for key in ("voi", "voi_split", "voi_merge"))
    return f"{figures} {everything['voi']:7.3f} {covered:7.3f} {len(np.unique(segmentation)) - 1:8}"


if __name__ == "__main__":
    main()
