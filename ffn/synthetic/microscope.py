"""Image the tissue as a microscope does: blur, noise, a defective section, eight bits."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from ffn.synthetic.config import SynthConfig


def photograph(tissue: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> np.ndarray:
    """Image the tissue.

    Parameters
    ----------
    tissue : float32 ndarray of shape (Z, Y, X)
        Grey levels without blur or noise.
    config : SynthConfig
        Blur, noise and the defective section.
    rng : numpy.random.Generator
        Source of the noise.

    Returns
    -------
    uint8 ndarray of shape (Z, Y, X)
    """
    image = gaussian_filter(tissue, np.divide(config.blur_nm, config.voxel_size_zyx_nm), mode="nearest")
    # Shot noise: brighter voxels collect more electrons. In cytoplasm, the standard deviation is `noise`.
    spread = config.noise * np.sqrt(np.clip(image, 0, None) / config.cytoplasm_grey)
    image += spread * rng.standard_normal(image.shape, dtype=np.float32)
    if config.defect_position is not None:
        _spoil(image[round(config.defect_position * (len(image) - 1))], config, rng)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _spoil(section: np.ndarray, config: SynthConfig, rng: np.random.Generator) -> None:
    """Darken a section in place, reduce its contrast and add noise."""
    mean = section.mean()
    section -= mean
    section *= config.defect_contrast
    section += mean - config.defect_darkening
    section += config.defect_noise * rng.standard_normal(section.shape, dtype=np.float32)
