"""Stage `synth`: make and write a synthetic volume and its ground truth, in which every label is one piece."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.ndimage import distance_transform_edt
from skimage.measure import label
from skimage.segmentation import relabel_sequential

from ffn.geometry import Box
from ffn.io.store import create_volume, require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, require_other_file
from ffn.options import add_options, add_store_option, from_arguments, whole_number
from ffn.provenance import provenance
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.tissue import Path, grow_neurites, photograph, power_diagram, smooth_noise, stain

UNDULATION_NM = 10.0  # amplitude of the membranes' undulation
UNDULATION_LENGTH_NM = 40.0  # standard deviation of the Gaussian that makes it smooth
MIN_NEURITE_VOXELS = 500  # smaller connected pieces become part of their neighbours


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make a synthetic EM volume with labels: neurites, membranes with weak spots, organelles, noise.

    example:
      ffn synth --shape 96 128 160 --out-image raw.zarr --out-labels labels.zarr
    """
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="N", help="fixes everything random (default: 1)"
    )
    add_store_option(parser, "--out-image", "uint8 image")
    add_store_option(parser, "--out-labels", "uint64 labels")
    add_options(parser, SynthConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    synth(arguments.out_image, arguments.out_labels, from_arguments(SynthConfig, arguments), arguments.rng_seed)


def synth(image_spec: str, labels_spec: str, config: SynthConfig, rng_seed: int) -> None:
    """Make a synthetic EM volume and write its image (uint8) and labels (uint64).

    Parameters
    ----------
    image_spec, labels_spec : str
        ``NAME.zarr``, two stores.
    config : SynthConfig
        Shape, anatomy and imaging.
    rng_seed : int
        Random seed; the same configuration and seed give the same files.

    Raises
    ------
    VolumeError
        If both are the same, or one cannot be written.
    """
    require_other_file(labels_spec, image_spec)
    for spec in (image_spec, labels_spec):  # check both before writing either
        require_replaceable(spec, {MAIN})
    made_by = provenance("synth", config, rng_seed=rng_seed)
    placement = Placement(Box.from_shape(config.shape_zyx), config.voxel_size_zyx_nm, made_by)
    with (
        create_volume(image_spec, np.uint8, placement) as image,
        create_volume(labels_spec, np.uint64, placement) as labels,
    ):
        phantom = make_phantom(config, rng_seed)
        image.write(placement.box, phantom.image)
        labels.write(placement.box, phantom.labels)


class Phantom(NamedTuple):
    """An image and its ground truth."""

    image: np.ndarray
    labels: np.ndarray


def make_phantom(config: SynthConfig, rng_seed: int) -> Phantom:
    """Make a block of neuropil and its image.

    Memory and time grow with the volume, so this is for demos and tests.
    """
    growth, shape, staining, imaging = np.random.default_rng(rng_seed).spawn(4)
    paths = grow_neurites(config, growth)
    labels = fill_territories(paths, config, shape)
    tissue = stain(labels, paths, config, staining)
    return Phantom(photograph(tissue, config, imaging), labels)


def fill_territories(paths: list[Path], config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Assign every voxel to the neurite with the nearest tube, with undulating borders; see `connected_pieces`."""
    neurite_ids = np.concatenate([np.full(len(path.points_nm), path.neurite_id) for path in paths])
    diagram = power_diagram(paths)
    # Section by section, because the search needs a hundred bytes per voxel.
    territories = [neurite_ids[diagram.owner(places)] for places in _displaced_sections_nm(config, rng)]
    return connected_pieces(np.reshape(territories, config.shape_zyx), MIN_NEURITE_VOXELS)


def _displaced_sections_nm(config: SynthConfig, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the displaced voxel centres of each section, of shape (voxels, 3)."""
    sigma = np.divide(UNDULATION_LENGTH_NM, config.voxel_size_zyx_nm)
    shifts_nm = [UNDULATION_NM * smooth_noise(config.shape_zyx, sigma, rng) for _ in range(3)]
    _, height, width = config.shape_zyx
    y, x = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    for section, shift_nm in enumerate(zip(*shifts_nm, strict=True)):
        centres = np.stack([np.full_like(y, section + 0.5), y, x], axis=-1) * config.voxel_size_zyx_nm
        yield (centres + np.stack(shift_nm, axis=-1)).reshape(-1, 3)


def connected_pieces(territories: np.ndarray, min_voxels: int) -> np.ndarray:
    """Give every connected piece its own id, and merge small pieces into their neighbours: 1 to N without gaps.

    A neurite that leaves the volume and comes back becomes two labels, as it would for an annotator.
    """
    pieces = label(territories, connectivity=3)
    small = np.bincount(pieces.ravel()) < min_voxels
    while (missing := small[pieces]).any() and not missing.all():
        nearest = distance_transform_edt(missing, return_distances=False, return_indices=True)
        pieces = label(pieces[tuple(nearest)], connectivity=3)
        small = np.bincount(pieces.ravel()) < min_voxels
    return relabel_sequential(pieces)[0].astype(np.uint64)
