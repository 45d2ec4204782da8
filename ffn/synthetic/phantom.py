"""A synthetic EM volume with its true labels."""

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
    """An image and the truth about it.

    Parameters
    ----------
    image : uint8 ndarray of shape (Z, Y, X)
        Grey levels; membranes are dark.
    labels : uint64 ndarray of shape (Z, Y, X)
        Neurite of every voxel, 1..N; neighbours meet in the middle of the membrane between them, there is no
        background, as in the FIB-25 ground truth.
    """

    image: np.ndarray
    labels: np.ndarray


def make_phantom(config: SynthConfig, rng_seed: int) -> Phantom:
    """Make a block of neuropil and its image.

    Memory and time grow with the volume: it is meant for demos and tests.

    Parameters
    ----------
    config : SynthConfig
        Shape, anatomy and imaging.
    rng_seed : int
        Same configuration and seed, same arrays. Every stage has its own stream: imaging settings leave the
        labels as they are.

    Returns
    -------
    Phantom
    """
    growth, shape, staining, imaging = np.random.default_rng(rng_seed).spawn(4)
    paths = grow_neurites(config, growth)
    labels = fill_territories(paths, config, shape)
    tissue = stain(labels, paths, config, staining)
    return Phantom(photograph(tissue, config, imaging), labels)
