"""Fixtures for tests of training data."""

import numpy as np
import pytest

from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.training.data.volumes import TrainingVolume

from ....volumes import create_volume

IMAGE_BOX = Box((2, 0, 4), (14, 20, 34))
LABELS_BOX = Box((4, 1, 5), (14, 20, 34))


@pytest.fixture
def volume(tmp_path):
    """Image over `IMAGE_BOX`, labels 0, 1, 2 in slabs of x over the smaller `LABELS_BOX`."""
    image = np.random.default_rng(5).integers(0, 255, IMAGE_BOX.shape).astype(np.uint8)
    labels = np.zeros(LABELS_BOX.shape, np.uint64)
    labels[..., 5:15], labels[..., 15:] = 1, 2
    for name, box, voxels in (("raw", IMAGE_BOX, image), ("labels", LABELS_BOX, labels)):
        with create_volume(f"{tmp_path}/v.{name}.h5:{name}", voxels.dtype, Placement(box, (30.0, 8.0, 8.0))) as writer:
            writer.write(box, voxels)
    with (
        open_volume(f"{tmp_path}/v.raw.h5:raw") as raw,
        open_volume(f"{tmp_path}/v.labels.h5:labels") as truth,
    ):
        yield TrainingVolume("v", raw, truth)
