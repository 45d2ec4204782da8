"""Stage `ingest`: copy images or labels from any supported format into the project's format."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial

import numpy as np

from ffn.config import IngestConfig
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, scale, subtract
from ffn.io import hdf5
from ffn.io.create import Writer, create_volume
from ffn.io.foreign import readable_formats
from ffn.io.hdf5_volume import CHUNK_ZYX
from ffn.io.open import open_mip
from ffn.io.volume import IGNORED, Placement, Volume, require_labels, split_spec
from ffn.options import add_box_option, add_options, from_arguments
from ffn.progress import track
from ffn.provenance import provenance

log = logging.getLogger(__name__)

BLOCK_BYTES = 2**28  # of output voxels; a few arrays of this size exist at a time
IMAGE_DTYPES = (np.dtype(np.uint8), np.dtype(np.uint16))

Conversion = Callable[[np.ndarray], np.ndarray]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Copy images or labels from any supported format into the project's format, and check them.

    A folder or URL can name its format: zarr://PATH, n5://PATH or precomputed://PATH.
    """
    parser.add_argument("source", metavar="SOURCE", nargs="+", help=f"image or labels: {readable_formats()}")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="VOLUME", help="to write, NAME.zarr or FILE.h5:DATASET")
    add_options(parser, IngestConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    if len(arguments.source) > 1:
        count, first = len(arguments.source), arguments.source[0]
        raise ConfigError(f"SOURCE: found {count} ({first} …), expected one. Put a glob in quotes: 'stack/*.png'")
    ingest(arguments.source[0], arguments.out, from_arguments(IngestConfig, arguments), arguments.box)


def ingest(source: str, out_spec: str, config: IngestConfig, box: Box | None = None) -> None:
    """Copy a volume into ``NAME.zarr`` or ``file.h5:dataset``, block by block.

    Parameters
    ----------
    source : str
        Any volume that `ffn.io.open.open_volume` reads. The supervoxels of a NeuroProof file (datasets `stack` and
        `transforms`) are mapped to bodies.
    out_spec : str
        ``NAME.zarr`` or ``file.h5:dataset``. Images stay uint8 or uint16, labels become uint64. Those to
        ignore become `IGNORED`.
    config : IngestConfig
        Kind, voxel size, mip, offset, labels to ignore.
    box : Box, optional
        Part to copy, in full-volume voxels after ``config.offset_zyx`` is applied; default: all.

    Raises
    ------
    VolumeError
        If the source cannot be read, has the wrong type for its kind, holds negative labels that count, or no label.
    ConfigError
        If the voxel size is unknown or differs from that of the source.
    """
    with open_mip(source, config.mip, config.voxel_size_zyx_nm) as volume:
        is_labels = _is_labels(volume, config.kind)
        shift = subtract(config.offset_zyx or volume.box.start, volume.box.start)
        everything = volume.box.shift(shift)
        box = box or everything
        if not everything.contains(box):
            raise VolumeError(f"{source}: box {box} leaves the volume {everything}, expected a box inside")
        made_by = provenance("ingest", config, source=source, box=box)
        placement = Placement(box, _voxel_size(volume, config.voxel_size_zyx_nm), made_by)
        dtype = np.dtype(np.uint64) if is_labels else volume.dtype.newbyteorder("=")
        conversion = _label_conversion(volume, config.ignore_labels) if is_labels else _unchanged
        with create_volume(out_spec, dtype, placement) as out:
            lowest, highest = _copy(volume, shift, out, conversion, _blocks(box, dtype.itemsize))
            _check_range(source, is_labels, lowest, highest)


def neuroproof_bodies(labels: Volume) -> np.ndarray | None:
    """Read the table that maps the supervoxels of a NeuroProof file to bodies.

    Parameters
    ----------
    labels : Volume
        Labels to map.

    Returns
    -------
    int64 or uint64 ndarray of shape (N, 2), or None
        Pairs (supervoxel, body) in ascending order, including (0, 0). None unless the labels are the dataset `stack`
        of an HDF5 file that also holds `transforms`.

    Raises
    ------
    VolumeError
        If `transforms` is not a list of pairs, or maps a supervoxel to several bodies.
    """
    path, dataset = split_spec(labels.name)
    if dataset is None or dataset.strip("/") != "stack":
        return None
    with hdf5.open_file(path) as file:
        if "transforms" not in file:
            return None
        pairs = file["transforms"][()]
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "ui":
        found = f"shape {pairs.shape} and type {pairs.dtype}"
        raise VolumeError(f"{path}:transforms: has {found}, expected pairs (supervoxel, body) of integers")
    pairs = pairs.astype(np.int64 if pairs.dtype.kind == "i" else np.uint64)
    pairs = np.unique(np.vstack([pairs, np.zeros((1, 2), pairs.dtype)]), axis=0)
    twice = pairs[1:][pairs[1:, 0] == pairs[:-1, 0]]
    if len(twice):
        raise VolumeError(
            f"{path}:transforms: supervoxel {twice[0, 0]} has several bodies, expected one. Correct the table"
        )
    return pairs


def _is_labels(volume: Volume, kind: str) -> bool:
    """Decide whether the voxels are labels, and check that their type fits."""
    if kind == "labels" or (kind == "auto" and volume.dtype.kind in "ui" and volume.dtype.itemsize > 2):
        require_labels(volume)
        return True
    if volume.dtype.newbyteorder("=") not in IMAGE_DTYPES:
        raise VolumeError(
            f"{volume.name}: has type {volume.dtype}, expected an image of uint8 or uint16. "
            "Convert it, or pass --kind labels if the voxels are segment ids"
        )
    return False


def _voxel_size(volume: Volume, given: VoxelSize | None) -> VoxelSize:
    known = volume.voxel_size_zyx_nm
    if given is None and known is None:
        raise ConfigError(f"--voxel-size: is missing and {volume.name} declares none, expected Z Y X in nm")
    if given is not None and known is not None and not np.allclose(given, known, rtol=1e-4):
        raise ConfigError(
            f"--voxel-size: {given} nm differs from the {known} nm that {volume.name} declares, expected the same. "
            "Leave the option out or correct the source"
        )
    return given or known  # type: ignore[return-value]


def _blocks(box: Box, itemsize: int) -> list[Box]:
    """Slabs as thick as a chunk; larger ones are cut into strips, for each of which a slice is decoded again."""
    depth, height, _ = CHUNK_ZYX
    width = box.shape[2]
    rows = BLOCK_BYTES // (depth * width * itemsize) // height * height
    return list(box.blocks((depth, max(rows, height), width)))


def _copy(volume: Volume, shift: ZYX, out: Writer, conversion: Conversion, blocks: list[Box]) -> tuple[int, int]:
    """Copy all blocks; return the lowest and the highest value."""
    lowest, highest = [], []
    for block in track(blocks, len(blocks), "ingest"):
        voxels = conversion(volume.read(block.shift(scale(shift, -1))))
        out.write(block, voxels)
        lowest.append(int(voxels.min()))
        highest.append(_highest(voxels))
    return min(lowest), max(highest)


def _highest(voxels: np.ndarray) -> int:
    """Return the highest grey level, or the highest label that is not ignored."""
    if voxels.dtype != IGNORED.dtype:
        return int(voxels.max())
    return max(0, int((voxels + np.uint64(1)).max()) - 1)  # makes 0 of IGNORED


def _check_range(source: str, is_labels: bool, lowest: int, highest: int) -> None:
    if is_labels and highest == 0:
        raise VolumeError(
            f"{source}: every voxel is 0 or ignored, expected at least one label. Are file and box the right ones?"
        )
    if not is_labels and lowest == highest:
        log.warning("%s: every voxel is %d. Is it the right file?", source, lowest)


def _unchanged(voxels: np.ndarray) -> np.ndarray:
    return voxels


def _label_conversion(volume: Volume, ignore_labels: tuple[int, ...]) -> Conversion:
    pairs = neuroproof_bodies(volume)
    as_ids = partial(_as_ids, ignore_labels=ignore_labels, name=volume.name)
    if pairs is None:
        return as_ids
    log.info("%s: mapping %d supervoxels to %d bodies", volume.name, len(pairs), len(np.unique(pairs[:, 1])))
    return lambda voxels: as_ids(_map_bodies(voxels, pairs, volume.name))


def _as_ids(voxels: np.ndarray, ignore_labels: tuple[int, ...], name: str) -> np.ndarray:
    """Convert labels to unsigned ids, with `IGNORED` for those to ignore; -1 and 2⁶⁴ - 1 have the same bits."""
    ids = voxels.astype(np.uint64)
    ignored = np.isin(ids, np.array([label % 2**64 for label in ignore_labels], np.uint64))
    if voxels.dtype.kind == "i" and (negative := (voxels < 0) & ~ignored).any():
        raise VolumeError(
            f"{name}: holds the label {voxels[negative].min()}, expected no negative label but those to ignore, "
            f"{ignore_labels}. Correct the labels, or add it to ignore_labels"
        )
    ids[ignored] = IGNORED
    return ids


def _map_bodies(supervoxels: np.ndarray, pairs: np.ndarray, name: str) -> np.ndarray:
    """Replace every supervoxel with its body."""
    ids = supervoxels.astype(pairs.dtype)  # NumPy compares signed and unsigned integers as float64
    rows = np.searchsorted(pairs[:, 0], ids)
    rows[rows == len(pairs)] = 0
    unknown = pairs[rows, 0] != ids
    if unknown.any():
        raise VolumeError(
            f"{name}: supervoxel {supervoxels[unknown][0]} has no row in 'transforms', "
            "expected a row for every supervoxel. Complete the table"
        )
    return pairs[rows, 1]
