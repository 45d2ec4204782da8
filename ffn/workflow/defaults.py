"""Defaults that follow from a volume's voxels: FOV and deltas, subvolumes, and the axes that training exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ffn.config import MAX_VOXEL_SIZE_RATIO, ModelConfig, SubvolumesConfig
from ffn.errors import ConfigError
from ffn.geometry import VoxelSize
from ffn.workflow.run import VolumeConfig
from ffn.workflow.sources import find_image

LEAST_FOV = 9  # voxels; our choice: 270 nm across sections of 30 nm, and two moves of two voxels
DELTAS_PER_FOV = 4
STEP = 8  # voxels; subvolumes are multiples of it


def voxel_size(values: Mapping[str, Any]) -> VoxelSize | None:
    """Return the voxel size of a configuration's first volume, None where the configuration is not valid."""
    try:
        name, first = next(iter(values["volumes"].items()))
        volume = VolumeConfig(**(first or {}))
    except (ValidationError, ConfigError, LookupError, StopIteration, TypeError, AttributeError):
        return None
    if volume.synthetic:
        return volume.synthetic.voxel_size_zyx_nm
    if volume.voxel_size_zyx_nm and volume.mip is None:
        return volume.voxel_size_zyx_nm
    return find_image(name, volume).voxel_size_zyx_nm


def derived(
    values: Mapping[str, Any], voxel_size_zyx_nm: VoxelSize, initial: ModelConfig | None = None
) -> dict[str, dict[str, Any]]:
    """Return the options by section, those that it leaves open as they follow from voxels or weights.

    A FOV has about the same length along every axis, and initial weights bring theirs. Deltas are a quarter of it, and
    subvolumes overlap by as many FOVs as with the usual network.

    Examples
    --------
    >>> found = derived({}, (30.0, 6.0, 6.0))
    >>> found["model"]
    {'fov_size_zyx': [9, 33, 33], 'deltas_zyx': [2, 8, 8]}
    >>> found["subvolumes"], found["train"]
    ({'size_zyx': [72, 256, 256], 'overlap_zyx': [14, 48, 48]}, {'permutable_axes': ['y', 'x']})
    >>> derived({"model": {"fov_size_zyx": [3, 17, 33]}}, (30.0, 12.0, 12.0))["model"]
    {'fov_size_zyx': [3, 17, 33], 'deltas_zyx': [1, 4, 8]}
    """
    given = {name: values.get(name) or {} for name in ("model", "subvolumes", "train")}
    if not all(isinstance(section, Mapping) for section in given.values()):
        return {}
    usual, tiles = ModelConfig(), SubvolumesConfig()
    ratios = [side / min(voxel_size_zyx_nm) for side in voxel_size_zyx_nm]
    thin = [_odd(n / r) if r > MAX_VOXEL_SIZE_RATIO else n for n, r in zip(usual.fov_size_zyx, ratios, strict=True)]
    fov = given["model"].get("fov_size_zyx", list(initial.fov_size_zyx) if initial else thin)
    if not _is_zyx(fov):
        return {}
    own = initial and list(fov) == list(initial.fov_size_zyx)
    deltas = list(initial.deltas_zyx) if initial and own else [min(n // 2, max(1, n // DELTAS_PER_FOV)) for n in fov]
    deltas = given["model"].get("deltas_zyx", deltas)
    if not _is_zyx(deltas):
        return {}
    shares = [n / most for n, most in zip(thin, usual.fov_size_zyx, strict=True)]
    size = [-(-int(n * share) // STEP) * STEP for n, share in zip(tiles.size_zyx, shares, strict=True)]
    # On FIB-25, with overlaps of 48 for FOVs of 33, VOI between eight subvolumes and one, agglomerated, is 0.107.
    overlap = [-(-n * f // most) for n, f, most in zip(tiles.overlap_zyx, fov, usual.fov_size_zyx, strict=True)]
    sides = list(zip("zyx", voxel_size_zyx_nm, fov, deltas, strict=True))
    _, side, *network = sides[1]
    ratio = MAX_VOXEL_SIZE_RATIO
    axes = [axis for axis, n, *of in sides if of == network and side / ratio <= n <= side * ratio]
    found = {
        "model": {"fov_size_zyx": list(fov), "deltas_zyx": list(deltas)},
        "subvolumes": {"size_zyx": size, "overlap_zyx": overlap},
        "train": {} if given["train"].get("preset") else {"permutable_axes": axes if len(axes) > 1 else []},
    }
    return {section: {**options, **given[section]} for section, options in found.items()}


def note(values: Mapping[str, Any], completed: Mapping[str, Mapping[str, Any]], size: VoxelSize) -> str | None:
    """Return a line on the options that were derived and differ from the usual ones; None if there are none."""
    usual = derived({}, (1.0, 1.0, 1.0))
    found = [
        f"{section}.{name} {list(value)}"
        for section, options in completed.items()
        for name, value in options.items()
        if name not in (values.get(section) or {}) and value != usual[section].get(name, value)
    ]
    named = " × ".join(f"{side:g}" for side in size)
    return f"derived from voxels of {named} nm, or from init: {', '.join(found)}" if found else None


def _is_zyx(value: Any) -> bool:
    """Whether a given value is of the right kind; else the model says what is wrong with it."""
    return isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(n, int) for n in value)


def _odd(length: float) -> int:
    return max(LEAST_FOV, 2 * round((length - 1) / 2) + 1)
