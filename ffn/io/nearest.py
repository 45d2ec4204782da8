"""Read a volume of another voxel size at the voxels of a box."""

from __future__ import annotations

import numpy as np

from ffn.errors import VolumeError
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.volume import Volume


def read_nearest(
    volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None, outside: int | None = None
) -> np.ndarray:
    """Return the voxels of a volume of any voxel size that are nearest to those of a box.

    Parameters
    ----------
    volume : Volume
        What to read. Without a voxel size, it is taken to have the same.
    box : Box
        In voxels of `voxel_size_zyx_nm`.
    voxel_size_zyx_nm : tuple of float or None
        None: that of `volume`.
    outside : int, optional
        Value beyond the volume; by default the volume has to cover the box.

    Returns
    -------
    ndarray of shape ``box.shape``

    Raises
    ------
    VolumeError
        If the volume does not cover the box, and there is no value for what is outside.
    """
    if outside is None:
        require_cover(volume, box, voxel_size_zyx_nm)
    indices = _indices(volume, box, voxel_size_zyx_nm)
    part = _hull(indices).intersect(volume.box)
    if part == box:
        return volume.read(part)
    found = np.full(box.shape, 0 if outside is None else outside, volume.dtype)
    if not part.is_empty:
        inside = [(i >= a) & (i < b) for i, a, b in zip(indices, part.start, part.stop, strict=True)]
        places = [i[known] - a for i, known, a in zip(indices, inside, part.start, strict=True)]
        found[np.ix_(*inside)] = volume.read(part)[np.ix_(*places)]
    return found


def require_cover(volume: Volume, box: Box, voxel_size_zyx_nm: VoxelSize | None) -> None:
    """Check that a volume of any voxel size covers a box; see `read_nearest`.

    Raises
    ------
    VolumeError
        If it does not.
    """
    part = _hull(_indices(volume, box, voxel_size_zyx_nm))
    if not volume.box.contains(part):
        own = "" if part == box else f", which is {part} in its voxels of {volume.voxel_size_zyx_nm} nm"
        raise VolumeError(
            f"{volume.name}: the mask covers {volume.box}, expected all of {box}{own}. "
            "Take a smaller box, or extend the mask"
        )


def _hull(indices: list[np.ndarray]) -> Box:
    return Box(zyx(i[0] for i in indices), zyx(i[-1] + 1 for i in indices))


def _indices(volume: Volume, box: Box, voxel_size: VoxelSize | None) -> list[np.ndarray]:
    """Return for each axis the place of the nearest voxel in `volume`: the one that the centre of a voxel lies in."""
    own = volume.voxel_size_zyx_nm
    ratios = (1.0, 1.0, 1.0)
    if voxel_size is not None and own is not None and not np.allclose(voxel_size, own, rtol=1e-4):
        ratios = tuple(a / b for a, b in zip(voxel_size, own, strict=True))  # type: ignore[assignment]
    ranges = (np.arange(a, b) + 0.5 for a, b in zip(box.start, box.stop, strict=True))
    return [np.floor(centres * ratio).astype(np.int64) for centres, ratio in zip(ranges, ratios, strict=True)]
