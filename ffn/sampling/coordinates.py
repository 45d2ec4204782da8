"""Stage `coordinates`: list the voxels that may be the centre of a training example, by partition."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ffn.config import Mask
from ffn.errors import RecordError, VolumeError
from ffn.geometry import Box, zyx
from ffn.io import hdf5
from ffn.io.block_log import Result
from ffn.io.blocks import WHOLE, Job, add_job_options, forget_blocks, job_of, reduce_blocks
from ffn.io.masks import Masks, mask_inputs, open_masks
from ffn.io.open import identity, open_volume
from ffn.io.store_names import MAIN, split_store
from ffn.io.training_records import OUTSIDE_PARTITION
from ffn.io.volume import Volume, require_inside, volume_in
from ffn.options import add_box_option, add_masks_option, add_options, add_volume_option, from_arguments, masks_from
from ffn.progress import track
from ffn.provenance import fingerprint, provenance
from ffn.sampling.config import CoordinatesConfig

log = logging.getLogger(__name__)

BLOCK_ZYX = (128, 128, 128)  # determines the order of the coordinates, so it is not an option
COORDINATES_FORMAT = 1
COORDINATES_GROUP = "partitions"
ROW_BLOCKS = 16  # along x, which a job looks at together: neighbours in that order, and 32 MiB in memory
REASONS = {
    "margin": "in the margin (--margin)",
    "outside": "without a whole LOM (partition 255)",
    "background": "background or in small labels (partition 0, --include-background)",
    "membrane": "near a membrane (--membrane-distance)",
    "masked": "masked (--masks)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """List the voxels that may be the centre of a training example: in a partition, away from membranes and border.

    example:
      ffn coordinates --partitions partitions.zarr --membrane membrane.zarr --out coordinates.h5
    """
    add_volume_option(parser, "--partitions", "from 'ffn partition'")
    parser.add_argument(
        "--membrane", metavar="NAME.zarr", help="from 'ffn membrane' (default: keep voxels near membranes)"
    )
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5", help="tables of coordinates, one for each partition")
    add_masks_option(parser)
    add_job_options(parser)
    add_options(parser, CoordinatesConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = from_arguments(CoordinatesConfig, arguments)
    specs = arguments.partitions, arguments.membrane, arguments.out
    coordinates(*specs, config, arguments.box, masks_from(arguments), job_of(arguments))


def coordinates(
    partitions_spec: str,
    membrane_spec: str | None,
    out_path: str | Path,
    config: CoordinatesConfig,
    box: Box | None = None,
    masks: tuple[Mask, ...] = (),
    job: Job = WHOLE,
) -> None:
    """Write the coordinates of all eligible voxels, one table for each partition.

    The HDF5 file has ``partitions/1`` and so on: int32 of shape (N, 3), full-volume voxels, zyx, block by block. Its
    attributes tell how many voxels each condition removed. Without distances to membranes, voxels near them are kept.

    Raises
    ------
    RecordError
        If no voxel is eligible.

    Notes
    -----
    Partition 0 is left out by default. The target of an example is the object at its centre, and a background centre
    has none: the network would learn to reject its seed. google/ffn trains on such examples, too.
    """
    with (
        open_volume(partitions_spec) as partitions,
        open_volume(_distance_spec(membrane_spec)) if membrane_spec else contextlib.nullcontext() as distance,
        open_masks(masks, partitions.voxel_size_zyx_nm) as opened,
    ):
        box = box or partitions.box
        if partitions.dtype != np.uint8:
            expected = "uint8, as 'ffn partition' writes"
            raise VolumeError(f"{partitions.name}: has type {partitions.dtype}, expected {expected}")
        for volume in filter(None, (partitions, distance)):
            require_inside(volume, box)
        inputs = {"partitions": partitions_spec, "membrane": membrane_spec, "box": box, **mask_inputs(masks)}
        volumes = [partitions_spec, membrane_spec, *(mask.path for mask in masks)]
        key = fingerprint("coordinates", config, content=[identity(spec) for spec in volumes if spec], **inputs)
        inner = box.grow(zyx(-margin for margin in config.margin_zyx))
        rows = [] if inner.is_empty else list(inner.blocks(zyx((*BLOCK_ZYX[:2], BLOCK_ZYX[2] * ROW_BLOCKS))))
        results = reduce_blocks(str(out_path), rows, partial(_classes, partitions, distance, opened, config), key, job)
        if results is None:
            return
        with hdf5.create_file(out_path) as file:
            found = Counter(margin=box.num_voxels - inner.num_voxels)
            found.update(_write_tables(file, rows, results))
            counts = _in_order(found, partitions.name, box)
            file.attrs["format"] = COORDINATES_FORMAT
            file.attrs["counts"] = json.dumps(counts)
            file.attrs["provenance"] = json.dumps(provenance("coordinates", config, **inputs), sort_keys=True)
    forget_blocks(str(out_path))
    log.info("%s: %s", out_path, ", ".join(f"{count} {fate}" for fate, count in counts.items()))


def _in_order(found: Counter[str], name: str, box: Box) -> dict[str, int]:
    """Return the numbers of voxels in the order of `REASONS`; refuse a box without an eligible one."""
    counts = {fate: found[fate] for fate in (*REASONS, "eligible") if fate in found}
    if not counts.get("eligible"):
        fates = ", ".join(f"{counts[key]} are {text}" for key, text in REASONS.items() if counts.get(key))
        raise RecordError(f"{name}: of {box.num_voxels} voxels in {box}, none is eligible: {fates}")
    return counts


def _classes(partitions: Volume, distance: Volume | None, masks: Masks, config: CoordinatesConfig, row: Box) -> Result:
    """Return the partitions of eligible voxels, 255 elsewhere, and the numbers of those that were removed."""
    found = np.full(row.shape, OUTSIDE_PARTITION, np.uint8)
    removed: Counter[str] = Counter()
    for block in row.blocks(BLOCK_ZYX):
        classes = partitions.read(block)
        conditions = {"outside": classes == OUTSIDE_PARTITION}
        if not config.include_background:
            conditions["background"] = classes == 0
        if distance is not None:
            conditions["membrane"] = distance.read(block) < config.membrane_distance_nm
        if masks:
            conditions["masked"] = masks.read(block)
        eligible = np.ones(block.shape, bool)
        for reason, bad in conditions.items():
            removed[reason] += int(np.count_nonzero(eligible & bad))
            eligible &= ~bad
        found[block.slices(row.start)][eligible] = classes[eligible]
    return {"classes": found, "removed": dict(removed)}


def _write_tables(file: hdf5.Group, rows: Sequence[Box], results: Iterable[Result]) -> Counter[str]:
    """Append the coordinates of all blocks; return the number of eligible voxels and of those that were removed."""
    counts: Counter[str] = Counter()
    group = file.create_group(COORDINATES_GROUP)
    for row, of_row in zip(track(rows, len(rows), "tables"), results, strict=True):
        counts.update(of_row["removed"])
        for block in row.blocks(BLOCK_ZYX):
            classes = of_row["classes"][block.slices(row.start)]
            eligible = classes != OUTSIDE_PARTITION
            counts["eligible"] += int(np.count_nonzero(eligible))
            centers_zyx, of_each = (np.argwhere(eligible) + block.start).astype(np.int32), classes[eligible]
            for partition in np.unique(of_each).tolist():
                name = str(partition)
                table = group[name] if name in group else hdf5.create_rows(group, name, 3, np.int32)
                hdf5.append_rows(table, centers_zyx[of_each == partition])
    return counts


def coordinate_tables(file: hdf5.Group, path: str | Path) -> dict[int, hdf5.Dataset]:
    """Return the tables in a file from 'ffn coordinates', by partition in ascending order."""
    if file.attrs.get("format") != COORDINATES_FORMAT or COORDINATES_GROUP not in file:
        found = f"{path}: holds {sorted(hdf5.list_datasets(file))}"
        raise RecordError(f"{found}, expected tables of coordinates. Was it written by 'ffn coordinates'?")
    tables = hdf5.list_datasets(file[COORDINATES_GROUP])
    return {partition: tables[str(partition)] for partition in sorted(map(int, tables))}


def _distance_spec(membrane_spec: str) -> str:
    """Return the distance in a store of 'ffn membrane'; another volume as it is named."""
    store = split_store(membrane_spec)
    return volume_in(store[0], "distance") if store and store[1] == MAIN else membrane_spec
