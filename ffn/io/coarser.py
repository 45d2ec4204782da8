"""Mips that a volume does not have: how large they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ffn.geometry import ZYX, Box, VoxelSize, divide_up, zyx

Downsample = Literal["mean", "mode"]


@dataclass(frozen=True)
class Scale:
    """One mip: its box and voxel size.

    Parameters
    ----------
    box : Box
        Box in voxels of this mip.
    voxel_size_zyx_nm : tuple of float
        Sides of a voxel, nm.
    factors_zyx : tuple of int
        Downsampling factors relative to the previous mip.
    """

    box: Box
    voxel_size_zyx_nm: VoxelSize
    factors_zyx: ZYX = (1, 1, 1)


def next_scale(finer: Scale) -> Scale:
    """Plan the next mip.

    An axis is halved unless its voxels are already twice as long as the shortest side, so that anisotropic voxels
    become more isotropic. Voxels are counted from the origin of the full volume, so the first and the last of an axis
    may cover less than the others.
    """
    shortest = min(finer.voxel_size_zyx_nm)
    factors = zyx(2 if side < 2 * shortest else 1 for side in finer.voxel_size_zyx_nm)
    start = zyx(n // f for n, f in zip(finer.box.start, factors, strict=True))
    z, y, x = (side * f for side, f in zip(finer.voxel_size_zyx_nm, factors, strict=True))
    return Scale(Box(start, divide_up(finer.box.stop, factors)), (z, y, x), factors)
