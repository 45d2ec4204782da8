"""Score the contacts between base segments by whether the network grows one segment into the other."""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ffn.assembly.carried import overlap_rows, read_rows
from ffn.assembly.contacts import Contact, add_contacts, decision_points, find_contacts, with_overlaps
from ffn.assembly.judging import judged, judged_again, with_smaller_steps, write_lines
from ffn.assembly.merge_graph import header
from ffn.assembly.objects import Objects
from ffn.assembly.places import OVERLAPS, Places, ranges_near
from ffn.assembly.resegment import Surroundings
from ffn.config import AgglomerateConfig, AgglomerateJobs, Mask, flooding_model, require_window
from ffn.errors import ConfigError, VolumeError
from ffn.geometry import CELL, ZYX, Box, cell_shape, cut, scale, zyx
from ffn.inference.choice import Network, chosen
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of
from ffn.io.box_files import make_files
from ffn.io.masks import Masks, mask_inputs, open_masks
from ffn.io.open import identity, open_segmentation, open_volume, read_table
from ffn.io.volume import Volume, require_image_of, require_other_file, voxel_size_of
from ffn.model.normalize import read_normalisation
from ffn.model.store import load_model, weights_checksum
from ffn.options import (
    add_box_option,
    add_machine_option,
    add_masks_option,
    add_normalization_option,
    add_options,
    add_volume_option,
    from_arguments,
    masks_from,
)
from ffn.progress import track
from ffn.provenance import fingerprint, provenance

log = logging.getLogger(__name__)

COMPONENTS = "components"
CHECKSUM_BLOCK_ZYX = (128, 128, 128)  # voxels read at a time; the checksum depends on it, so it is no option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Score which touching segments are one object: the network grows both sides of every contact in a small window.

    The base segmentation is not changed. 'ffn merge' applies the graph, and 'ffn sweep' scores every threshold.
    """
    add_volume_option(parser, "--segmentation", "base segmentation, of ffn segment, reconcile or consensus")
    add_volume_option(parser, "--image", "raw image")
    parser.add_argument("--model", required=True, metavar="DIR", help="trained model")
    text = "merge graph to write; FOLDER/ cuts the box into parts of --job-size, with a graph each"
    parser.add_argument("--out", required=True, metavar="FILE.csv", help=text)
    add_box_option(parser)
    add_options(parser, AgglomerateJobs)
    add_job_options(parser)
    add_machine_option(parser)
    add_normalization_option(parser)
    add_masks_option(parser)
    add_options(parser, AgglomerateConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = from_arguments(AgglomerateConfig, arguments)
    sources, job = (arguments.segmentation, arguments.image, arguments.model), job_of(arguments)
    how = arguments.machine, arguments.normalization, masks_from(arguments)
    if arguments.out.endswith("/"):
        size_zyx = from_arguments(AgglomerateJobs, arguments).job_size_zyx
        _agglomerate_parts(*sources, arguments.out, config, arguments.box, size_zyx, job, how)
    elif job != WHOLE or arguments.job_size_zyx:
        raise ConfigError(f"--out: {arguments.out} is a file, --job-size and --job need --out FOLDER/")
    else:
        agglomerate(*sources, arguments.out, config, arguments.box, *how)


def _agglomerate_parts(
    segmentation_spec: str,
    image_spec: str,
    model_folder: str,
    folder: str,
    config: AgglomerateConfig,
    box: Box | None,
    size_zyx: ZYX,
    job: Job,
    how: tuple[str | None, str | None, tuple[Mask, ...]],
) -> None:
    """Write a graph for each part of a box; `how` are the machine, the normalisation and the masks."""
    _require_here(folder)
    with open_volume(segmentation_spec) as segmentation, open_volume(image_spec) as image:
        parts = cut(_checked(segmentation, image, box), size_zyx)
    model, (machine, normalization, masks) = load_model(model_folder), how
    choice = chosen(model, config, machine)
    specs = segmentation_spec, image_spec, *(mask.path for mask in masks)
    inputs: dict[str, object] = {"volumes": [identity(spec) for spec in specs if spec], "box": box, "size": size_zyx}
    inputs |= {"weights": weights_checksum(model.weights), "engine": (choice.engine, choice.precision)}
    inputs |= {"network": model.config.model_dump_json(), **mask_inputs(masks)}
    inputs |= {"grey_levels": read_normalisation(normalization, model.config)}

    def work(left: list[Box], finished: Callable[[Box], None]) -> None:
        objects = read_objects(segmentation_spec)  # of the whole volume, so not for each part
        for part in track(left, len(left), "parts"):
            path = f"{folder}{part.stem}.csv"
            agglomerate(segmentation_spec, image_spec, model_folder, path, config, part, *how, objects)
            finished(part)

    make_files(folder, ".csv", parts, work, fingerprint("agglomerate", config, **inputs), job)


class Known(NamedTuple):
    """What is known of the segments near a box."""

    claims: np.ndarray  # of `read_claims`
    objects: Objects  # of which the segments are components


def read_claims(spec: str, segmentation: Volume, near: Box) -> np.ndarray:
    """Read the rows of ``overlaps`` (N, 6) whose cell begins in `near`, ascending; not the rest of the table."""

    def is_near(rows: np.ndarray) -> np.ndarray:
        if rows.shape[1:] != (6,) or rows.dtype.kind != "i" or (rows[:, [0, 1, 5]] < 0).any():
            raise _no_overlaps(spec)
        return near.holds(rows[:, 2:5])

    ranges = ranges_near(spec, Places(segmentation.box, voxel_size_of(segmentation)), near)
    claims = read_table(spec, OVERLAPS, is_near, ranges)
    if claims is None:
        raise _no_overlaps(spec)
    return overlap_rows(claims.astype(np.int64))


def read_objects(spec: str) -> Objects:
    """Read of which objects the segments of a volume are components."""
    return Objects(read_rows(spec, COMPONENTS, 2))


def agglomerate(
    segmentation_spec: str,
    image_spec: str,
    model_folder: str,
    out_path: str,
    config: AgglomerateConfig,
    box: Box | None = None,
    machine: str | None = None,
    normalization: str | None = None,
    masks: tuple[Mask, ...] = (),
    objects: Objects | None = None,
) -> None:
    """Write the merge graph of a base segmentation. The segmentation itself is not changed.

    Candidates are places where two segments touch and where both claimed some of the same voxels during flood filling
    (the table ``overlaps`` in the segmentation's file). Places with few such voxels for the size of the contact there
    are left out. The brightest of the others are the decision points, and the network grows both segments in a window
    around each: one after the other, and as many windows at once as there are canvases. Points do not depend on `box`,
    so jobs that tile the volume find each once. With larger steps than the model's (`effort`), points where only one
    side entered the other are judged once more in the model's steps, and the higher score counts. Edges are appended in
    order to ``<out>.partial``, and those judged again to ``<out>.again.partial``, from which a killed job resumes.

    Parameters
    ----------
    segmentation_spec : str
        Base segmentation ``NAME.zarr`` or ``FILE.h5:DATASET``, with the table ``overlaps`` in the same file.
    image_spec : str
        Raw image; covers the segmentation.
    model_folder : str
        Trained model.
    out_path : str
        CSV file to write; see `MergeEdge`.
    config : AgglomerateConfig
        Choice of candidates, windows, thresholds, engine.
    box : Box, optional
        Only score decision points inside it; default all. Several jobs can share a volume, each with its own box.
    machine : str, optional
        Folder with what ``auto`` takes in all jobs of the run; see `ffn.inference.choice.chosen`.
    normalization : str, optional
        File of `ffn normalize` for the image; default: mean and deviation of the model.
    masks : tuple of Mask
        Voxels that no contact lies in and no object enters.
    objects : Objects, optional
        Of which the segments are components; default: they are read.

    Raises
    ------
    VolumeError
        If the table of overlaps is missing, or the image does not cover the segmentation or has other voxels.
    ModelError
        If the model is missing or damaged.
    ConfigError
        If the window is too small for the model's FOV to move, or this machine cannot run the engine or hold the
        canvases.

    Notes
    -----
    Source: agglomeration in Januszewski et al. 2018, Methods.
    """
    _require_new_file(out_path, segmentation_spec, image_spec)
    own = load_model(model_folder)
    model = replace(own, config=flooding_model(own.config, config))
    normalisation = read_normalisation(normalization, model.config)
    require_window(config.window_radius_zyx, model.config, "window_radius_zyx")
    with (
        open_segmentation(segmentation_spec) as segmentation,
        open_volume(image_spec) as image,
        open_masks(masks, image.voxel_size_zyx_nm) as masked,
    ):
        box = _checked(segmentation, image, box)
        claims = read_claims(segmentation_spec, segmentation, _searched(segmentation, box, config))
        known = Known(claims, objects or read_objects(segmentation_spec))
        candidates = _candidates(segmentation, image, masked, box, known, config)
        network = Network(model, normalisation, chosen(model, config, machine))
        around = Surroundings(image, segmentation, network, config, masked)
        lanes = around.open_lanes(len(candidates))
        inputs = {"segmentation": segmentation_spec, "image": image_spec, "weights": weights_checksum(model.weights)}
        voxels, size = _checksum(segmentation, image, masked, box, config), segmentation.voxel_size_zyx_nm
        inputs |= {"voxels": voxels, "size": str(size), "engine": lanes.name, "box": str(box)}
        inputs |= {"network": model.config.model_dump_json(), "image_box": str(image.box)}
        inputs |= {"own_deltas": str(own.config.deltas_zyx), "grey_levels": str(normalisation), **mask_inputs(masks)}
        partials = Path(f"{out_path}.partial"), Path(f"{out_path}.again.partial")
        head = header(fingerprint("agglomerate", config, **inputs, canvases=lanes.size))
        lines = judged(partials[0], head, candidates, around, lanes)
        del lanes  # a device may have no room for others beside them
        finer = with_smaller_steps(around, own)
        if finer:
            lines = judged_again(partials[1], head, lines, candidates, finer)
        write_lines(out_path, header(provenance("agglomerate", config, **inputs)), lines)
        for partial in partials:
            partial.unlink(missing_ok=True)


def _require_here(out_path: str) -> None:
    """Refuse a URL, which would be taken for a relative path."""
    if "://" in out_path:
        raise VolumeError(f"{out_path}: is an address, expected a path on this machine. Copy the graph there later")


def _require_new_file(out_path: str, *input_specs: str) -> None:
    _require_here(out_path)
    require_other_file(out_path, *input_specs)
    if Path(out_path).is_dir():
        raise VolumeError(f"{out_path}: is a folder, expected a file to write to, such as {out_path}/graph.csv")


def _checked(segmentation: Volume, image: Volume, box: Box | None) -> Box:
    require_image_of(segmentation, image)
    part = segmentation.box if box is None else box.intersect(segmentation.box)
    if part.is_empty:
        raise VolumeError(
            f"{segmentation.name}: box {box} lies outside the volume {segmentation.box}, expected one that overlaps it"
        )
    return part


def _checksum(segmentation: Volume, image: Volume, masked: Masks, box: Box, config: AgglomerateConfig) -> str:
    """Return a checksum of all voxels that the windows of a job show, so that it never resumes from stale edges."""
    total = hashlib.sha256()
    corners = box.start, zyx(n - 1 for n in box.stop)
    around = (Box.around(corner, config.window_radius_zyx).moved_into(segmentation.box) for corner in corners)
    for block in Box.hull(around).blocks(CHECKSUM_BLOCK_ZYX):
        for voxels in (segmentation.read(block), image.read(block), masked.read(block)):
            total.update(np.ascontiguousarray(voxels).data)
    return total.hexdigest()


def _no_overlaps(spec: str) -> VolumeError:
    return VolumeError(
        f"{spec}: its file has no table {OVERLAPS!r} of integers (id, id, z, y, x, voxels), "
        "expected a file of ffn segment, reconcile or consensus. Was it made by another version? Rerun these"
    )


def _searched(segmentation: Volume, box: Box, config: AgglomerateConfig) -> Box:
    """Return what is searched for the decision points in `box`, in whole cells, which may reach beyond the volume."""
    cell = cell_shape(voxel_size_of(segmentation))
    outer = _whole_cells(box, cell).grow(scale(cell, _radius(config) + 1)).intersect(segmentation.box)
    return _whole_cells(outer, cell)


def _radius(config: AgglomerateConfig) -> int:
    """Return how many cells around it a decision point is the brightest in."""
    return math.ceil(config.min_point_distance / CELL)


def _candidates(
    segmentation: Volume, image: Volume, masks: Masks, box: Box, known: Known, config: AgglomerateConfig
) -> list[Contact]:
    """Return the decision points in `box`, where two segments touch and overlap deeply enough, or were one object.

    All is counted by cells, so that the points do not depend on how the volume is cut into jobs.
    """
    size, near, (claims, objects) = voxel_size_of(segmentation), _searched(segmentation, box, config), known
    pairs = np.unique(claims[:, :2], axis=0).astype(np.uint64)
    blocks = list(near.intersect(segmentation.box).blocks(config.block_size_zyx))
    walk = track(blocks, len(blocks), "contacts")
    found = (c for b in walk for c in find_contacts(segmentation, image, b, pairs, config.max_gap, objects, masks))
    touching = with_overlaps(add_contacts(found, size), claims, size, objects)
    deep = {
        pair: {place: c for place, c in cells.items() if is_one or _is_deep(c, config)}
        for pair, cells in touching.items()
        for is_one in [len(set(objects.of_pair(pair))) == 1]
    }
    points = decision_points(deep, box, _radius(config))
    counts = (len(pairs), len(touching), sum(map(bool, deep.values())), len(points))
    log.info("%d pairs overlap, %d touch, %d deeply enough: %d decision points", *counts)
    return points


def _is_deep(contact: Contact, config: AgglomerateConfig) -> bool:
    return contact.overlap >= max(config.min_overlap_voxels, config.min_overlap_depth * contact.faces)


def _whole_cells(box: Box, cell_zyx: ZYX) -> Box:
    """Return the smallest box of whole cells that contains `box`."""
    start, stop = (np.array(corner) for corner in (box.start, box.stop))
    return Box(zyx(start // cell_zyx * cell_zyx), zyx(-(-stop // cell_zyx) * cell_zyx))
