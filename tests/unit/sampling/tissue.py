"""What the tests of partitions share: labels like cells, and the definition of a count."""

import numpy as np

from ffn.geometry import Box

BOX = Box((3, 10, 0), (27, 43, 50))
RADIUS = (2, 4, 3)


def tissue(shape=BOX.shape, num_objects=25, rng_seed=0) -> np.ndarray:
    """Return Voronoi cells with background between them and ids of any size."""
    rng = np.random.default_rng(rng_seed)
    centers = rng.random((num_objects, 3)) * shape
    voxels = np.argwhere(np.ones(shape))
    distances = np.sqrt(((voxels[:, None] - centers) ** 2).sum(axis=2))
    order = np.sort(distances, axis=1)
    names = rng.integers(1, 2**63, num_objects, dtype=np.uint64)
    return np.where(order[:, 1] - order[:, 0] < 1.5, 0, names[distances.argmin(axis=1)]).reshape(shape)


def count_by_definition(labels, radius, ids) -> np.ndarray:
    """Look at every voxel of every LOM."""
    windows = np.lib.stride_tricks.sliding_window_view(labels, [2 * r + 1 for r in radius])
    centres = labels[tuple(slice(r, n - r) for r, n in zip(radius, labels.shape, strict=True))]
    counts = (windows == centres[..., None, None, None]).sum(axis=(3, 4, 5))
    return np.where(np.isin(centres, ids), counts, 0)
