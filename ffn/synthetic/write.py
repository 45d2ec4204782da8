"""Stage `synth`: write a synthetic volume and its ground truth."""

from __future__ import annotations

import argparse

import numpy as np

from ffn.geometry import Box
from ffn.io.store import create_volume, require_replaceable
from ffn.io.store_names import MAIN
from ffn.io.volume import Placement, require_other_file
from ffn.options import add_options, add_store_option, from_arguments, whole_number
from ffn.provenance import provenance
from ffn.synthetic.config import SynthConfig
from ffn.synthetic.phantom import make_phantom


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Make a synthetic EM volume with labels: neurites, membranes with weak spots, organelles, noise."""
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="N", help="fixes everything random (default: 1)"
    )
    add_store_option(parser, "--out-image", "uint8 image")
    add_store_option(parser, "--out-labels", "uint64 labels")
    add_options(parser, SynthConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
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
