"""Write everything that Neuroglancer needs to show a result: volumes, meshes, segment properties, a state."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffn.atomic import atomic_path
from ffn.config import ExportConfig
from ffn.errors import ExportError
from ffn.geometry import Box, zyx
from ffn.provenance import provenance
from ffn.viewing.meshes import write_meshes
from ffn.viewing.precomputed import LABELS, image_encoding, plan_scales, read_scale, write_volume
from ffn.viewing.properties import FOLDER, write_segment_properties
from ffn.viewing.state import STATE_FILE, State, choose_segments, image_layer, labels_layer, make_state
from ffn.volume import Volume, open_volume, require_labels

PROVENANCE_FILE = "provenance.json"
CONTRAST_PERCENTILES = (0.5, 99.5)
CONTRAST_BOX_ZYX = (128, 128, 128)  # enough voxels to know the grey levels, read from the centre

VoxelSize = tuple[float, float, float]


@dataclass(frozen=True)
class Sources:
    """Volumes to export, as ``file.h5:dataset`` or URL; None for those that there are not.

    Parameters
    ----------
    image : str, optional
        Electron microscopy, uint8 or uint16.
    segmentation : str, optional
        Our segments.
    truth : str, optional
        Labels made by humans, or by the phantom.
    """

    image: str | None = None
    segmentation: str | None = None
    truth: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """Volumes by name."""
        return {name: spec for name, spec in vars(self).items() if spec is not None}


@dataclass(frozen=True)
class _Part:
    """What is exported of one volume."""

    volume: Volume
    box: Box
    voxel_size_zyx_nm: VoxelSize


def export(sources: Sources, out: str | Path, config: ExportConfig, box: Box | None = None) -> None:
    """Write an export folder; it appears whole or not at all.

    Parameters
    ----------
    sources : Sources
        What to export; each becomes a folder of its name.
    out : path
        Folder to make, or an earlier export to replace.
    config : ExportConfig
        Encoding and meshes.
    box : Box, optional
        Part to export, full-volume voxels; each volume contributes what it has of it. All where not given.

    Raises
    ------
    ExportError
        If nothing is given, a volume has an unusable type, no voxel size or another one than the others,
        nothing of it lies in `box`, or `out` cannot be written or is a folder that is no export.
    """
    _require_replaceable(Path(out))
    with contextlib.ExitStack() as stack:
        volumes = {name: stack.enter_context(open_volume(spec)) for name, spec in sources.given.items()}
        parts = _plan(volumes, config, box)
        try:
            with atomic_path(out) as folder:
                _write(folder, parts, config, sources)
        except OSError as reason:
            raise ExportError(f"{out}: cannot be written ({reason.strerror}). Choose another --out") from None


def _plan(volumes: dict[str, Volume], config: ExportConfig, box: Box | None) -> dict[str, _Part]:
    """Check everything before anything is written."""
    if not volumes:
        raise ExportError("export: no volume is given, expected --image, --segmentation or --truth")
    voxel_size = _common_voxel_size(volumes)
    for name, volume in volumes.items():
        if name == "image":
            image_encoding(volume.dtype, config.image_encoding, volume.name)
        else:
            require_labels(volume)
    return {name: _Part(volume, _inside(volume, box), voxel_size) for name, volume in volumes.items()}


def _write(folder: Path, parts: dict[str, _Part], config: ExportConfig, sources: Sources) -> None:
    folder.mkdir()
    layers = {}
    for name, part in parts.items():
        write_layer = _write_image if name == "image" else _write_labels
        layers[name] = write_layer(part, folder / name, config)
    if "segmentation" in layers and "truth" in layers:
        layers["truth"]["visible"] = False  # two coatings of colour at once show neither
    whole = _bounding_box([part.box for part in parts.values()])
    voxel_size = next(iter(parts.values())).voxel_size_zyx_nm
    _write_json(folder / STATE_FILE, make_state(list(layers.values()), whole, voxel_size))
    _write_json(folder / PROVENANCE_FILE, provenance("export", config, box=whole, **sources.given))


def _write_image(part: _Part, path: Path, config: ExportConfig) -> State:
    volume, scales = part.volume, plan_scales(part.box, part.voxel_size_zyx_nm)
    write_volume(path, image_encoding(volume.dtype, config.image_encoding, volume.name), scales, volume.read)
    return image_layer(path.name, _contrast(volume, part.box))


def _write_labels(part: _Part, path: Path, config: ExportConfig) -> State:
    sizes: Counter[int] = Counter()

    def read(block: Box) -> np.ndarray:
        labels = part.volume.read(block).astype(np.uint64, copy=False)
        ids, counts = np.unique(labels, return_counts=True)
        sizes.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        return labels

    scales = plan_scales(part.box, part.voxel_size_zyx_nm)
    write_volume(path, LABELS, scales, read)
    del sizes[0]
    mip = min(config.mesh_mip, len(scales) - 1)
    meshed = [segment_id for segment_id, size in sizes.items() if size >= config.min_mesh_voxels]
    write_meshes(path / "mesh", read_scale(path, mip), scales[mip], meshed)
    write_segment_properties(path, sizes)
    info = json.loads((path / "info").read_text())
    _write_json(path / "info", {**info, "mesh": "mesh", "segment_properties": FOLDER})
    return labels_layer(path.name, choose_segments(sizes, part.box.num_voxels))


def _common_voxel_size(volumes: dict[str, Volume]) -> VoxelSize:
    """Voxel size of all the volumes that state one."""
    found = {v.name: v.voxel_size_zyx_nm for v in volumes.values() if v.voxel_size_zyx_nm is not None}
    if not found:
        names = ", ".join(volume.name for volume in volumes.values())
        raise ExportError(f"{names}: no voxel size found, it is needed. Ingest it with --voxel-size Z Y X")
    if len(set(found.values())) > 1:
        sizes = ", ".join(f"{size} of {name}" for name, size in found.items())
        raise ExportError(f"export: voxel sizes differ: {sizes} (zyx, nm), all must be the same. Ingest again")
    return next(iter(found.values()))


def _inside(volume: Volume, box: Box | None) -> Box:
    """Return the part of `box` that the volume has."""
    part = volume.box if box is None else volume.box.intersect(box)
    if part.is_empty:
        raise ExportError(f"{volume.name}: its box {volume.box} has nothing of --box {box}. Choose another box")
    return part


def _bounding_box(boxes: list[Box]) -> Box:
    start = zyx(min(axis) for axis in zip(*(box.start for box in boxes), strict=True))
    stop = zyx(max(axis) for axis in zip(*(box.stop for box in boxes), strict=True))
    return Box(start, stop)


def _contrast(volume: Volume, box: Box) -> tuple[float, float]:
    """Grey levels to show black and white."""
    size = zyx(min(n, limit) for n, limit in zip(box.shape, CONTRAST_BOX_ZYX, strict=True))
    start = zyx(a + (n - m) // 2 for a, n, m in zip(box.start, box.shape, size, strict=True))
    low, high = np.percentile(volume.read(Box.from_shape(size, start)), CONTRAST_PERCENTILES)
    return float(low), float(max(high, low + 1))


def _require_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is not ours, such as a mistyped home folder."""
    is_empty = out.is_dir() and not any(out.iterdir())
    # Either file is enough: the workflow removes the state, its output, before it runs an export again.
    is_export = any((out / name).is_file() for name in (STATE_FILE, PROVENANCE_FILE))
    if out.exists() and not is_empty and not is_export:
        raise ExportError(f"{out}: exists and is no export, it will not be replaced. Choose another --out")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
