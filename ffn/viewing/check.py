"""Read an export back with cloud-volume, which shares no code with our writer, and compare it with its sources."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import ZYX, Box
from ffn.io.coarser import Scale
from ffn.progress import track
from ffn.viewing.config import ExportConfig
from ffn.viewing.precomputed import Encoding
from ffn.viewing.segments import Segments, block_segments, merge_segments
from ffn.viewing.volumes import LABELS_LAYERS, Part

log = logging.getLogger(__name__)

BLOCK_ZYX: ZYX = (128, 256, 256)
MAX_JPEG_DIFFERENCE = 6.0  # grey levels, mean over a block; JPEG of quality 90 loses one to three
MAX_BEYOND = 0.5  # voxels of the mip that a mesh may reach beyond its voxels: vertices are rounded
MAX_SHORT = 8.0  # voxels that it may end before: simplification drops islands of a few voxels; 2 on FIB-25
NUM_MESHES = 20  # sampled evenly over the segments, ordered by size


def require_reader() -> None:
    """Check that cloud-volume is installed, before the export starts.

    Raises
    ------
    ExportError
        If cloud-volume is not installed.
    """
    if importlib.util.find_spec("cloudvolume") is None:
        raise ExportError("--check: cloud-volume is not installed, it is needed. Run: pip install cloud-volume")


def check_export(folder: Path, parts: dict[str, Part], config: ExportConfig) -> None:
    """Compare every volume of an export with its source.

    Voxels must be equal (with JPEG: close). Resolution, offset and size of every mip must be as planned. Meshes of
    sampled segments must not reach beyond their voxels by half a voxel of the mip that they are made from.

    Parameters
    ----------
    folder : Path
        The export.
    parts : dict of str to Part
        Its sources.
    config : ExportConfig
        Settings of the export.

    Raises
    ------
    ExportError
        At the first difference.
    """
    for name, part in parts.items():
        _check_places(folder / name, part.scales)
        _check_voxels(folder / name, part, part.encoding(config))
        if name in LABELS_LAYERS:
            mip = min(config.mesh_mip, len(part.scales) - 1)
            # Downsampling may have removed voxels, so only check segments with twice the voxels that a mesh needs.
            least = 2 * config.min_mesh_voxels * part.scales[mip].box.num_voxels / part.box.num_voxels
            num_meshes = _check_meshes(folder / name, mip, part.scales[mip], least)
            log.info("%s: %d meshes have the extent of their voxels", name, num_meshes)
        log.info("%s: equals %s when read back", name, part.volume.name)


def _open(path: Path, mip: int = 0) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn
        from cloudvolume import CloudVolume
    return CloudVolume(f"file://{path.absolute()}", mip=mip, progress=False, fill_missing=True)


def _check_places(path: Path, scales: list[Scale]) -> None:
    for mip, scale in enumerate(scales):
        volume = _open(path, mip)
        compared: dict[str, tuple[Iterable[float], Iterable[float]]] = {
            "resolution": (volume.resolution, scale.voxel_size_zyx_nm[::-1]),
            "offset": (volume.voxel_offset, scale.box.start[::-1]),
            "size": (volume.shape[:3], scale.box.shape[::-1]),
        }
        for what, (found, expected) in compared.items():
            if list(found) != list(expected):
                raise _difference(path, f"{what} of mip {mip} is {list(found)}", f"expected {list(expected)} (xyz)")


def _check_voxels(path: Path, part: Part, encoding: Encoding) -> None:
    volume = _open(path)
    allowed = MAX_JPEG_DIFFERENCE if encoding.chunks == "jpeg" else 0.0
    blocks = list(part.box.blocks(BLOCK_ZYX))
    for block in track(blocks, len(blocks), f"check {part.name}"):
        found, expected = _download(volume, block), part.read(block)
        if np.array_equal(found, expected):
            continue
        difference = np.abs(found.astype(np.float64) - expected).mean()
        if not allowed or difference > allowed:
            raise _difference(
                path, f"voxels in {block} differ by {difference:.3g} on average", f"at most {allowed:g} is allowed"
            )


def _check_meshes(path: Path, mip: int, scale: Scale, min_voxels: float) -> int:
    """Compare the extents of some meshes with those of their voxels at the same mip; return the number of meshes."""
    volume, mips = _open(path), _open(path, mip)
    blocks = list(scale.box.blocks(BLOCK_ZYX))
    voxels = merge_segments([block_segments(_download(mips, block), block) for block in blocks])
    sampled = _sample(voxels, min_voxels)
    for row in sampled:
        segment_id = int(voxels.ids[row])
        vertices = volume.mesh.get(segment_id)[segment_id].vertices[:, ::-1]
        sides = ((-1, vertices.min(0), voxels.start_zyx[row]), (1, vertices.max(0), voxels.stop_zyx[row]))
        for outwards, side, place in sides:
            expected = place * np.array(scale.voxel_size_zyx_nm)
            beyond = outwards * (side - expected) / scale.voxel_size_zyx_nm
            if beyond.max() > MAX_BEYOND or beyond.min() < -MAX_SHORT:
                text = f"mesh of segment {segment_id} reaches {tuple(map(float, side))} nm"
                raise _difference(path, text, f"expected {tuple(map(float, expected))} (zyx)")
    return len(sampled)


def _sample(voxels: Segments, min_voxels: float) -> list[int]:
    """Return the rows of some segments that have a mesh, from the largest to the smallest."""
    order = np.argsort(-voxels.voxels, kind="stable")
    meshed = order[voxels.voxels[order] >= min_voxels]
    steps = np.linspace(0, len(meshed) - 1, min(NUM_MESHES, len(meshed))).astype(int)
    return meshed[steps].tolist()


def _download(volume: Any, box: Box) -> np.ndarray:
    return np.asarray(volume[tuple(box.slices()[::-1])])[..., 0].T


def _difference(path: Path, found: str, expected: str) -> ExportError:
    return ExportError(f"--check: {path.name}: {found}, {expected}. Do not trust the export, and report this")
