"""Stage `ingest`: copy images or labels from any supported format into the project's format."""

from __future__ import annotations

import argparse
import glob
import hashlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from ffn.errors import ConfigError, VolumeError
from ffn.geometry import ZYX, Box, VoxelSize, doubt_about_size, extent_um
from ffn.io import hdf5
from ffn.io.atomic import write_json
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, Results, Writers, add_job_options, job_of, map_blocks
from ffn.io.coarser import JUMPS, WINDOW, Placed, clahe_of, coarser, equalized, levelled, levels_of
from ffn.io.config import IngestConfig, SourceConfig
from ffn.io.foreign.chunked import REFERENCE, RELATIVE, ChunkedVolume
from ffn.io.label_statistics import doubts_about_image, doubts_about_labels
from ffn.io.open import identity, open_mip_or_finer, open_volume, readable_formats
from ffn.io.section_faults import JUMPS as DISPLACED
from ffn.io.section_faults import Fault, SectionWatch, faults_of, jumps_of, write_faults
from ffn.io.shards import CHUNK, group_metadata, shard_shape
from ffn.io.store import new_folder, require_replaceable, write_metadata
from ffn.io.store_names import MAIN, OURS
from ffn.io.volume import IGNORED, NO_SIZE, Converted, Placement, Volume, require_other_file, split_spec, voxel_size_of
from ffn.options import add_box_option, add_options, add_store_option, from_arguments
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

PIECE_BYTES = 2**27  # of voxels that are read or converted together; a few arrays of this size exist at a time
LARGEST_IMAGE_BYTES = 2  # of a voxel
# Of zstd: SNEMI3D's labels (z < 32) take 13 % more space than with the 6 of segments, FIB-25's 7 %, in half the time.
LEVEL_OF_LABELS = 3
SIDE = 64  # voxels; what is read of an image at a time is seldom smaller
MOST_DECODED_BYTES = 2**24  # of the chunks that hold such a cube, as chunks are decoded as a whole; our choice
LABELS_NAME = re.compile(r"label|segm|neuron_ids|truth|annot|(?<![a-z])(seg|gt|ids)(?![a-z])", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Copy images or labels from any supported format into the project's format, and check them.

    A folder or URL can name its format: zarr://PATH, n5://PATH or precomputed://PATH.

    example:
      ffn ingest 'stack/*.png' --voxel-size 10 10 10 --out raw.zarr
    """
    parser.add_argument("source", metavar="SOURCE", nargs="+", help=f"image or labels: {readable_formats()}")
    add_box_option(parser)
    add_store_option(parser, "--out", "volume")
    add_job_options(parser)
    add_options(parser, IngestConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if len(arguments.source) > 1:
        count, first = len(arguments.source), arguments.source[0]
        raise ConfigError(f"SOURCE: found {count} ({first} …), expected one. Put a glob in quotes: 'stack/*.png'")
    config = from_arguments(IngestConfig, arguments)
    ingest(arguments.source[0], arguments.out, config, arguments.box, job_of(arguments))
    if job_of(arguments).finishes:
        with open_volume(arguments.out) as made:
            doubts = doubts_about_labels(made) if made.dtype == IGNORED.dtype else doubts_about_image(made)
        for doubt in doubts:
            log.warning("%s: %s", arguments.source[0], doubt)


def ingest(source: str, out: str, config: IngestConfig, box: Box | None = None, job: Job = WHOLE) -> None:
    """Copy a volume into ``NAME.zarr``, one layer of shards after another.

    Of an image that can stay where it is, see `can_stay`, the store only says so.

    A slice, or another unit that a source decodes as a whole, is decoded once, as far as it lies in one layer; the last
    of an image's layer once more, to compare the next layer with it. A mip that the source does not have is made of the
    coarsest that it has, see `ffn.io.coarser`.

    Supervoxels of a NeuroProof file (datasets `stack` and `transforms`) are mapped to bodies. Signed images become
    unsigned, labels uint64, and those to ignore `IGNORED`. The box is in full-volume voxels of the mip after
    ``config.offset_zyx`` is applied.
    """
    require_other_file(out, source)
    is_placed = config.offset_zyx is not None
    with open_mip_or_finer(source, config.mip, config.voxel_size_zyx_nm, is_placed, config) as (opened, missing):
        if job.finishes:
            opened.warn_of_missing()
        found, is_labels = read_as(opened, config, config.kind)
        size = _voxel_size(found, config.voxel_size_zyx_nm)
        if job.finishes:
            log.info("%s: %s", source, extent_um(found.box.shape, size))
            if doubt := doubt_about_size(size):
                log.warning("%s: %s", source, doubt)
        volume: Volume = Placed(found, config.offset_zyx or found.box.start, size)
        first = volume.box.start[0]
        convert = _label_conversion(found, config.ignore_labels) if is_labels else None
        changes = {"clahe_tile": tile} if (tile := clahe_of(found)) and not is_labels else {}
        if found.dtype.kind == "i" and not is_labels:
            changes["added_to_voxels"] = 2 ** (8 * found.dtype.itemsize - 1)
            volume = _unsigned(volume)
            log.info("%s: has type %s, so %d is added to every voxel", source, found.dtype, changes["added_to_voxels"])
        if missing:
            finest = Converted(volume, convert, IGNORED.dtype) if convert else volume
            volume, convert = coarser(finest, missing, "mode" if is_labels else "mean"), None
            made = volume.voxel_size_zyx_nm
            log.info("%s: has no mip %d; its voxels of %s nm become %s nm", source, config.mip, size, made)
        box = box or volume.box
        if not volume.box.contains(box):
            raise VolumeError(f"{source}: box {box} leaves the volume {volume.box}, expected a box inside")
        stays = not (is_labels or missing or has_copy(out)) and can_stay(found, config)
        if not is_labels:
            volume = _with_even_sections(volume, box, config, stays)
        dtype, max_shift = (IGNORED.dtype, None) if is_labels else (volume.dtype, config.max_shift)
        made_by = provenance("ingest", config, source=source, box=box, **changes)
        shard_zyx = shard_shape(box.shape, dtype.itemsize)
        placement = Placement(box, voxel_size_of(volume), made_by, shard_zyx, LEVEL_OF_LABELS)
        if isinstance(volume, Placed) and stays:
            _refer(out, volume, placement, job)
            return

        def work(layer: Box, writers: Writers) -> Result:
            lowest, highest = [], []
            watch = SectionWatch(volume, box, layer, max_shift) if max_shift else None
            for piece, voxels in _pieces(volume, layer, shard_zyx, watch):
                voxels = convert(voxels) if convert else voxels
                writers[MAIN].write(piece, voxels)
                lowest.append(int(voxels.min()))
                most = max(1, (voxels + np.uint64(1)).max()) - 1 if is_labels else voxels.max()  # IGNORED becomes 0
                highest.append(int(most))
            return {"lowest": min(lowest), "highest": max(highest), **(watch.result() if watch else {})}

        def at_end(results: Results) -> None:
            lowest, highest = zip(*((each["lowest"], each["highest"]) for each in results), strict=True)
            if is_labels and max(highest) == 0:
                raise VolumeError(f"{source}: every voxel is 0 or ignored. Are file and box the right ones?")
            if not is_labels and min(lowest) == max(highest):
                log.warning("%s: every voxel is %d. Is it the right file?", source, min(lowest))
            odd = _odd_sections(opened, first, round(voxel_size_of(volume)[0] / size[0]), box)
            seen = faults_of(results, box.start[0]) if max_shift else []
            write_faults(out, sorted([*odd, *(each for each in seen if each.z not in {z for z, *_ in odd})]))

        key = fingerprint("ingest", config, source=identity(source), box=box)
        map_blocks(out, {MAIN: dtype}, placement, work, key, job, {DISPLACED: jumps_of}, at_end, layers=True)


def _refer(path: str, placed: Placed, placement: Placement, job: Job) -> None:
    """Write a store that refers to the source of a volume, or the record of a share of the layers."""
    log.info("%s: stays where it is, --copy-image always copies it", placed.name)
    source = cast(ChunkedVolume, placed.source)
    content = identity(source.address)
    if job.record_path:
        write_json(job.record_path, {"content": content})
    if not job.finishes:
        return
    found = {
        "source": source.address,
        "mip": source.mip,
        "chunk_zyx": source.chunk_zyx,
        "to_source_zyx": placed.to_source_zyx,
        "voxel_size_zyx_nm": placement.voxel_size_zyx_nm,
        "dtype": source.dtype.name,
    }
    moves = {RELATIVE: os.path.relpath(str(source.folder), os.path.abspath(path))} if source.is_relative else {}
    ours = {
        "provenance": placement.provenance,
        "box": str(placement.box),
        "content": hashlib.sha256(repr([str(placement.box), found, content]).encode()).hexdigest(),
        "volumes": [MAIN],
        "tables": [],
        REFERENCE: found | moves,
    }
    require_replaceable(path, {MAIN})
    with new_folder(path) as folder:
        write_metadata(folder, group_metadata({OURS: ours}))


def _with_even_sections(image: Volume, box: Box, config: IngestConfig, stays: bool) -> Volume:
    """Level the sections of an image if the configuration, or their grey levels, ask for it, and equalise them."""
    if config.clahe_tile is not None:
        return equalized(image, config.clahe_tile)
    levels = None if config.level_sections == "never" else levels_of(image, box)
    if levels and levels.jump > JUMPS:
        made = "--level-sections always evens them" if stays else "they are evened, --level-sections never keeps them"
        log.warning(
            "%s: grey levels jump by %.2f of their spread from one section to the next, above %g: %s",
            *(image.name, levels.jump, JUMPS, made),
        )
    is_wanted = levels and (config.level_sections == "always" or levels.jump > JUMPS)
    return levelled(image, levels, box) if levels and is_wanted and not stays else image


def neuroproof_bodies(labels: Volume) -> np.ndarray | None:
    """Return the pairs (supervoxel, body) of a NeuroProof file in ascending order, including (0, 0).

    They are None unless the labels are the dataset `stack` of an HDF5 file that also holds `transforms`.
    """
    path, dataset = split_spec(labels.name)
    if dataset is None or dataset.strip("/") != "stack":
        return None
    with hdf5.open_file(path) as file:
        if "transforms" not in file:
            return None
        pairs = file["transforms"][()]
    pairs = pairs.astype(np.int64 if pairs.dtype.kind == "i" else np.uint64)
    return np.unique(np.vstack([pairs, np.zeros((1, 2), pairs.dtype)]), axis=0)


def _odd_sections(source: Volume, first: int, thickness: int, box: Box) -> list[Fault]:
    """Return the sections in a box for which a source, placed at `first`, has no voxels, or too few."""
    found = [Fault((first + z) // thickness, fault, text) for z, fault, text in source.odd_sections]
    return [each for each in found if box.start[0] <= each.z < box.stop[0]]


def read_as(volume: Volume, config: SourceConfig, kind: str) -> tuple[Volume, bool]:
    """Return a source as an image or as labels, after checking that its type fits, and whether it is labels."""
    is_integer, is_wide = volume.dtype.kind in "ui", volume.dtype.itemsize > LARGEST_IMAGE_BYTES
    if kind == "auto" and config.intensity_range is None and is_integer:
        name = [part for part in Path(volume.name).absolute().parts if not glob.has_magic(part)][-1]
        is_named = LABELS_NAME.search(name) is not None
        kind = "labels" if is_wide or (is_named and doubts_about_image(volume.as_image())) else "image"
    if kind == "labels":
        return volume.as_labels(config.colour_ids), True
    image = volume.as_image()
    if config.intensity_range is not None:
        return Converted(image, partial(_as_grey, config.intensity_range), np.dtype(np.uint8)), False
    if is_wide or not is_integer:
        levels = image.read(image.box.middle((1, WINDOW, WINDOW)).intersect(image.box))
        finite = levels[np.isfinite(levels)].astype(float)
        low, high = np.percentile(finite, (1, 99)) if len(finite) else (0, 1)
        found = f"{volume.name}: has type {volume.dtype}, expected an image of integers of 8 or 16 bits"
        wanted = f"--intensity-range {low:.4g} {high:.4g} (intensity_range) keeps 98 % of its middle"
        advice = f"Say which levels become 0 and 255: {wanted}, or pass --kind labels if the voxels are segment ids"
        raise VolumeError(f"{found}. {advice}")
    return image, False


def _as_grey(limits: tuple[float, float], voxels: np.ndarray) -> np.ndarray:
    """Map grey levels to 8 bits; what is no number becomes 0."""
    low, high = limits
    levels = (voxels.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    return np.rint(np.nan_to_num(np.clip(levels, 0, 255))).astype(np.uint8)


def has_copy(store: str) -> bool:
    """Whether a store on this machine has voxels of its own, finished or not: a copy stays a copy."""
    return Path(store, MAIN).is_dir()


def can_stay(volume: Volume, config: SourceConfig) -> bool:
    """Whether an image can be read where it is as fast as from a copy: small chunks in a folder on this machine."""
    is_changed = config.clahe_tile is not None or config.level_sections == "always" or volume.dtype.kind == "i"
    if config.copy_image == "always" or is_changed or volume.folder is None or volume.chunk_zyx is None:
        return False
    return math.prod(-(-SIDE // n) * n for n in volume.chunk_zyx) * volume.dtype.itemsize <= MOST_DECODED_BYTES


def _voxel_size(volume: Volume, given: VoxelSize | None) -> VoxelSize:
    known = volume.voxel_size_zyx_nm
    if given is None and known is None:
        declared = f"one in {volume.unknown_unit!r:.100}, an unknown unit" if volume.unknown_unit else "none"
        raise ConfigError(f"--voxel-size: is missing and {volume.name} declares {declared}, expected Z Y X in nm")
    if given is not None and known is not None and known != NO_SIZE and not np.allclose(given, known, rtol=1e-4):
        found = f"--voxel-size: {given} nm differs from the {known} nm that {volume.name} declares, expected the same"
        raise ConfigError(f"{found}. Leave the option out or correct the source; --mip makes larger voxels")
    return given or known  # type: ignore[return-value]


def _pieces(volume: Volume, layer: Box, shard_zyx: ZYX, watch: SectionWatch | None) -> Iterator[tuple[Box, np.ndarray]]:
    """Yield the voxels of a layer: shard by shard, or slab by slab if slices are decoded as a whole."""
    (chunk_depth, *chunk_yx), (_, height, width) = volume.chunk_zyx or (1, 1, 1), layer.shape
    read_zyx = piece_zyx = shard_zyx
    if tuple(chunk_yx) == volume.box.shape[1:]:
        most = min(PIECE_BYTES // (height * width * volume.dtype.itemsize), CHUNK)
        depth = 1 << max(0, most.bit_length() - 1)  # a power of two, so that slabs fill chunks
        read_zyx = max(depth, chunk_depth), height, width
        piece_zyx = depth, max(1, PIECE_BYTES // (depth * width * IGNORED.itemsize)), width
    for part in layer.blocks(read_zyx):
        voxels = volume.read(part)
        if watch:
            watch.see(part, voxels)
        for piece in part.blocks(piece_zyx):
            yield piece, voxels[piece.slices(part.start)]


def _unsigned(image: Volume) -> Volume:
    """Return an image of int8 or int16, such as the bytes of MRC, with all grey levels raised to those of uint."""
    dtype = np.dtype(f"u{image.dtype.itemsize}")
    sign = dtype.type(2 ** (8 * dtype.itemsize - 1))
    return Converted(image, lambda voxels: voxels.view(dtype) ^ sign, dtype)


def _label_conversion(volume: Volume, ignore_labels: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray]:
    pairs = neuroproof_bodies(volume)
    as_ids = partial(_as_ids, ignore_labels=ignore_labels, name=volume.name)
    if pairs is None:
        return as_ids
    log.info("%s: mapping %d supervoxels to %d bodies", volume.name, len(pairs), len(np.unique(pairs[:, 1])))
    return lambda voxels: as_ids(_map_bodies(voxels, pairs, volume.name))


def _as_ids(voxels: np.ndarray, ignore_labels: tuple[int, ...], name: str) -> np.ndarray:
    """Convert labels to unsigned ids, with `IGNORED` for those to ignore; -1 and 2⁶⁴ - 1 have the same bits."""
    ids, bits = voxels.astype(np.uint64), 32 if voxels.dtype == np.uint32 else 64
    ignored = np.isin(ids, np.array([n % 2 ** (bits if -(2**31) <= n < 0 else 64) for n in ignore_labels], np.uint64))
    if voxels.dtype.kind == "i" and (negative := (voxels < 0) & ~ignored).any():
        found = f"{name}: holds the label {voxels[negative].min()}, expected no negative one but {ignore_labels}"
        raise VolumeError(f"{found}. Correct the labels, or add it to ignore_labels")
    ids[ignored] = IGNORED
    return ids


def _map_bodies(supervoxels: np.ndarray, pairs: np.ndarray, name: str) -> np.ndarray:
    """Replace every supervoxel with its body."""
    ids = supervoxels.astype(pairs.dtype)  # NumPy compares signed and unsigned integers as float64
    rows = np.searchsorted(pairs[:, 0], ids)
    rows[rows == len(pairs)] = 0
    unknown = pairs[rows, 0] != ids
    if unknown.any():
        raise VolumeError(f"{name}: supervoxel {supervoxels[unknown][0]} has no row in transforms. Complete the table")
    return pairs[rows, 1]
