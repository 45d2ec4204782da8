"""Write points as a precomputed annotation layer of three files.

Source of the format: Neuroglancer, ``src/datasource/precomputed/annotations.md``. Points are zyx here, xyz there.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ffn.geometry import Box, VoxelSize
from ffn.viewing.shards import Item, write_shards

POINTS_FOLDER = "coordinates"  # in an export, and the name of the layer


def write_points(
    folder: Path, points_zyx: np.ndarray, classes: np.ndarray, box: Box, voxel_size_zyx_nm: VoxelSize
) -> None:
    """Write points and their partitions, which become the property ``partition`` of the layer.

    Parameters
    ----------
    folder : Path
        Folder to create.
    points_zyx : ndarray of shape (K, 3)
        Voxels inside `box`, shown at their centres.
    classes : uint8 ndarray of shape (K,)
        Partition of each.
    box : Box
        Bounds of the layer, full-volume voxels.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Three bytes of padding follow the three floats and the class.
    rows = np.zeros(len(points_zyx), [("xyz", "<f4", 3), ("class", "u1"), ("fill", "u1", 3)])
    rows["xyz"], rows["class"] = points_zyx[:, ::-1] + 0.5, classes
    (folder / "by_id").mkdir(exist_ok=True)
    sharding = write_shards(folder / "by_id", {i: Item(row.tobytes()) for i, row in enumerate(rows)})
    (folder / "all").mkdir(exist_ok=True)
    ids = np.arange(len(rows), dtype="<u8")
    (folder / "all" / "0_0_0").write_bytes(np.uint64(len(rows)).tobytes() + rows.tobytes() + ids.tobytes())
    sides = zip("xyz", voxel_size_zyx_nm[::-1], strict=True)
    info = {
        "@type": "neuroglancer_annotations_v1",
        "dimensions": {axis: [side * 1e-9, "m"] for axis, side in sides},
        "lower_bound": box.start[::-1],
        "upper_bound": box.stop[::-1],
        "annotation_type": "POINT",
        "properties": [{"id": "partition", "type": "uint8", "description": "active fraction class"}],
        "relationships": [],
        "by_id": {"key": "by_id", "sharding": sharding},
        "spatial": [{"key": "all", "grid_shape": [1, 1, 1], "chunk_size": box.shape[::-1], "limit": len(rows)}],
    }
    (folder / "info").write_text(json.dumps(info))
