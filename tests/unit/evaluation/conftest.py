"""Small segmentations and skeletons whose scores are known."""

import numpy as np
import pytest

from ffn.evaluation.skeletonize import Skeleton, join

from ..volumes import write

SIZE_ZYX_NM = (30.0, 10.0, 20.0)
TUBE_SIZE_NM = (40.0, 10.0, 20.0)


@pytest.fixture
def truth():
    labels = np.arange(1, 25).reshape(2, 3, 4).repeat(5, 0).repeat(6, 1).repeat(7, 2).astype(np.uint64)
    labels[:, 0] = 0
    return labels


@pytest.fixture
def segmentation(truth):
    labels = truth * 3
    labels[:, :9][labels[:, :9] == 15] = 999  # a split
    labels[labels == 21] = 24  # a merger
    labels[:, :, 20:] = 0
    return labels


@pytest.fixture
def specs(tmp_path, truth, segmentation):
    seg = write(tmp_path / "seg.h5", segmentation, size=SIZE_ZYX_NM)
    return seg, write(tmp_path / "labels.h5", truth, size=SIZE_ZYX_NM)


@pytest.fixture
def image(tmp_path, truth):
    edges = np.stack([abs(np.gradient(truth.astype(float), axis=axis)) > 0 for axis in (1, 2)]).any(0)
    return write(tmp_path / "raw.h5", np.where(edges, 50, 200).astype(np.uint8), size=SIZE_ZYX_NM)


def line(owner, num_nodes, step_nm=100.0):
    """Return a straight skeleton along x."""
    nodes = np.zeros((num_nodes, 3))
    nodes[:, 2] = np.arange(num_nodes) * step_nm
    return Skeleton(
        owner, nodes + [owner * 1000.0, 5, 5], np.stack([np.arange(num_nodes - 1), np.arange(1, num_nodes)], -1)
    )


@pytest.fixture
def two():
    """Skeletons of 1000 and 500 nm."""
    return join([line(1, 11), line(2, 6)])


@pytest.fixture
def tubes(tmp_path):
    """Two straight tubes along x, the second broken in the segmentation."""
    labels = np.zeros((12, 40, 60), np.uint64)
    labels[2:8, 4:16], labels[2:8, 24:36] = 3, 4
    segments = labels * 10
    segments[:, 20:, 30:] *= 2
    segments[:, :, 58:] = 0
    return [
        write(tmp_path / f"{name}.h5", voxels, (10, 20, 30), TUBE_SIZE_NM)
        for name, voxels in (("labels", labels), ("segmentation", segments))
    ]


@pytest.fixture
def random_volumes():
    """Bodies, and segments that mostly follow them."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 9, (7, 11, 13)).astype(np.uint64)
    segmentation = np.where(rng.random(truth.shape) < 0.7, truth // 2, rng.integers(0, 6, truth.shape))
    return truth, segmentation.astype(np.uint64)
