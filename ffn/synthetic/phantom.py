"""Make a synthetic EM volume with its ground truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.synthetic.config import SynthConfig
from ffn.synthetic.microscope import photograph
from ffn.synthetic.neurites import grow_neurites
from ffn.synthetic.territories import fill_territories
from ffn.synthetic.tissue import stain


@dataclass(frozen=True)
class Phantom:
    """An image and its ground truth.

    Parameters
    ----------
    image : uint8 ndarray of shape (Z, Y, X)
        Grey levels; membranes are dark.
    labels : uint64 ndarray of shape (Z, Y, X)
        Neurite of every voxel, 1 to N. Neighbours meet in the middle of the membrane, so there is no background, as in
        the ground truth of FIB-25.
    """

    image: np.ndarray
    labels: np.ndarray


def make_phantom(config: SynthConfig, rng_seed: int) -> Phantom:
    """Make a block of neuropil and its image.

    Memory and time grow with the volume, so this is for demos and tests.

    Parameters
    ----------
    config : SynthConfig
        Shape, anatomy and imaging.
    rng_seed : int
        Random seed; the same configuration and seed give the same arrays. Every step has its own random stream, so
        imaging settings do not change the labels.

    Returns
    -------
    Phantom
    """
    growth, shape, staining, imaging = np.random.default_rng(rng_seed).spawn(4)
    paths = grow_neurites(config, growth)
    labels = fill_territories(paths, config, shape)
    tissue = stain(labels, paths, config, staining)
    return Phantom(photograph(tissue, config, imaging), labels)
