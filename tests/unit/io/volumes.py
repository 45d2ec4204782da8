"""What the tests of volumes share."""

import h5py
import numpy as np

from ffn.geometry import Box
from ffn.io.volume import Placement

SHAPE = (8, 16, 32)
START = (3, -2, 100)
VOXELS = np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)
PLACEMENT = Placement(Box.from_shape(SHAPE, START), (40.0, 4.0, 4.5), {"stage": "test"})


def write_foreign(path, attributes=None, shape=SHAPE, dtype=np.uint8, name="raw"):
    """Write a dataset as another program might; return its spec."""
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=np.zeros(shape, dtype)).attrs.update(attributes or {})
    return f"{path}:{name}"
