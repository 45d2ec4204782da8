"""The pictures of one volume: slices, neurons in 3D, close-ups of the worst errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ffn.evaluation.baseline import middle_of
from ffn.evaluation.errors import best_bodies, gap_ends, worst_of_each_kind
from ffn.evaluation.scoring import tabulate
from ffn.evaluation.skeletonize import read_thinned, step_for
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.hdf5 import CHUNK_ZYX
from ffn.io.open import open_truth, open_volume
from ffn.io.volume import Volume, require_inside, voxel_size_of
from ffn.report import pictures
from ffn.report.run_folder import VolumeFiles
from ffn.report.score_table import method_names

NUM_NEURONS = 14  # in 3D; more of them hide each other
MAX_NEURON_FRACTION = 0.06  # of the volume; a larger neuron hides all others
SAMPLES_3D = 64  # along the longest axis, at least; up to twice as many
NUM_CLOSE_UPS = 3  # of each kind of error
CLOSE_UP_NM = 1600.0  # side of a close-up
MAX_DRAWN_VOXELS = 10**9  # slices and neurons of a larger box show its middle: one job reads all of that


PIECES = (10, 13, 3, 11)  # ids whose colours differ most: red, cyan, yellow, violet


class Picture(NamedTuple):
    """One picture of a row."""

    title: str
    uri: str


class OpenVolumes(NamedTuple):
    """The volumes to draw."""

    image: Volume
    labels: dict[str, Volume]  # ground truth, segmentation and baseline by title, those that cover `box`
    own: str  # title of the segmentation
    box: Box  # where errors are
    drawn: Box  # of slices and neurons: the box, or the middle of a large one
    color_ids: dict[str, dict[int, int]]  # by title, the bodies whose colours its segments get

    @property
    def voxel_size_zyx_nm(self) -> VoxelSize:
        """Voxel size of the image; cubes of 1 nm if it has none."""
        return voxel_size_of(self.image)


@contextlib.contextmanager
def open_volumes(files: VolumeFiles) -> Iterator[OpenVolumes | None]:
    """Open the volumes to draw for the length of a ``with`` block; None if image or segmentation is missing."""
    if not files.image or not files.segmentation:
        yield None
        return
    own, *others = method_names(files.scores or {})
    specs = {"image": files.image, "truth": files.truth, own: files.segmentation}
    specs |= dict.fromkeys(others, files.baseline)
    with contextlib.ExitStack() as stack:
        volumes = {
            title: stack.enter_context(open_truth(spec) if title == "truth" else open_volume(spec))
            for title, spec in specs.items()
            if spec
        }
        image = volumes.pop("image")
        box = Box.parse(files.scores["box"]) if files.scores else volumes[own].box
        for volume in (image, volumes[own]):
            require_inside(volume, box)
        labels = {title: volume for title, volume in volumes.items() if volume.box.contains(box)}
        drawn = middle_of(box, MAX_DRAWN_VOXELS)
        color_ids = {title: _color_ids(volume, labels, drawn) for title, volume in labels.items()}
        yield OpenVolumes(image, labels, own, box, drawn, color_ids)


def slices(volumes: OpenVolumes) -> list[dict[str, Any]]:
    """Return a row of pictures for each of three planes: image, ground truth, segmentation, baseline."""
    size, section, found = volumes.voxel_size_zyx_nm, None, ""
    if "truth" in volumes.labels and not (labelled := _labelled(volumes.labels["truth"], volumes.drawn)).all():
        places = np.flatnonzero(labelled)
        found = f"; labels in {len(places)} of {len(labelled)} sections"
        if len(places):
            section = volumes.drawn.start[0] + int(places[np.abs(places - len(labelled) // 2).argmin()])
    planes = pictures.planes(volumes.drawn, size, section)
    return [
        {"plane": plane, "extent": _extent(plane, size) + found, "pictures": _row(plane, volumes)} for plane in planes
    ]


def _labelled(truth: Volume, box: Box) -> np.ndarray:
    """Return which sections of a box have labels, bool of shape (Z,)."""
    found = np.zeros(box.shape[0], bool)
    for block in box.blocks((64, 512, 512)):
        found[block.slices(box.start)[0]] |= truth.read(block).any(axis=(1, 2))
    return found


def neurons(volumes: OpenVolumes) -> list[Picture]:
    """Draw the largest neurons of the segmentation in 3D, and the bodies that they match."""
    size = volumes.voxel_size_zyx_nm
    longest = max(n * side for n, side in zip(volumes.drawn.shape, size, strict=True))
    step = step_for(longest / SAMPLES_3D, size, volumes.drawn.shape)
    spacing = np.array(step) * np.array(size)
    titles = [title for title in ("truth", volumes.own) if title in volumes.labels]
    shown = {title: read_thinned(volumes.labels[title], volumes.drawn, step) for title in titles}
    chosen = _largest(shown[volumes.own])
    bodies = [volumes.color_ids[volumes.own][one] for one in chosen if one in volumes.color_ids[volumes.own]]
    ids = {volumes.own: chosen, "truth": list(dict.fromkeys(bodies))}
    row = []
    for title, labels in shown.items():
        color_ids = np.array([volumes.color_ids[title].get(one, one) for one in ids[title]], np.uint64)
        colors = dict(zip(ids[title], pictures.colors(color_ids), strict=True))
        row.append(Picture(title, pictures.surfaces_uri(labels, spacing, colors)))
    return row


def close_ups(volumes: OpenVolumes, errors: list[dict[str, Any]]) -> dict[str, list[Picture]]:
    """Draw the sections around the worst errors, by error name."""
    return {error["name"]: _close_up(volumes, error) for error in worst_of_each_kind(errors, NUM_CLOSE_UPS)}


def worst_picture(volumes: OpenVolumes, error: dict[str, Any]) -> Picture:
    """Draw the pieces of a split body, or the bodies in a merger, around the place where they meet."""
    title = "truth" if error["kind"] == "merge" and "truth" in volumes.labels else volumes.own
    return next(picture for picture in _close_up(volumes, error) if picture.title == title)


def _close_up(volumes: OpenVolumes, error: dict[str, Any]) -> list[Picture]:
    """Draw image, ground truth and segmentation around an error, in the plane that holds both ends of its gap best.

    Only the objects involved are coloured.
    """
    size, ends = volumes.voxel_size_zyx_nm, gap_ends(error)
    axis = int(np.argmin(np.abs((ends[-1] - ends[0]) * size)))
    radius = [max(8, round(CLOSE_UP_NM / 2 / side)) for side in size]
    radius[axis] = 0
    box = Box.around(zyx(np.floor(np.mean(ends, axis=0))), zyx(radius)).moved_into(volumes.box)
    (plane,) = (plane for plane in pictures.planes(box, size) if plane.axis == axis)
    ids = {"truth": error["truth_ids"], volumes.own: error["segment_ids"]}
    row = []
    base = pictures.gray(volumes.image.read(box).squeeze(axis), plane.size_pixels)
    rings = [np.delete((end - box.start) / box.shape, axis) for end in ends]
    for title in ids:
        if title in volumes.labels:
            labels = volumes.labels[title].read(box).squeeze(axis)
            kept = np.where(np.isin(labels, np.array(ids[title], labels.dtype)), labels, 0)
            colors = {one: PIECES[i % len(PIECES)] for i, one in enumerate(ids[title])}
            shown = pictures.overlay(base, kept, colors)
            for place in rings:
                shown = pictures.with_ring(shown, *place)
            row.append(Picture(title, pictures.data_uri(shown)))
    return [Picture("image", pictures.data_uri(base)), *row]


def _largest(labels: np.ndarray) -> list[int]:
    """Ids of the largest objects, except those that would hide all others."""
    ids, counts = np.unique(labels, return_counts=True)
    ids, counts = ids[ids > 0], counts[ids > 0]
    order = np.argsort(-counts, kind="stable")
    slim = order[counts[order] <= MAX_NEURON_FRACTION * labels.size]
    return ids[slim if len(slim) else order][:NUM_NEURONS].tolist()


def _color_ids(volume: Volume, labels: dict[str, Volume], box: Box) -> dict[int, int]:
    """Ids of the bodies whose colours the segments of `volume` get."""
    if "truth" not in labels or volume is labels["truth"]:
        return {}
    return best_bodies(tabulate(labels["truth"].read, volume.read, box, CHUNK_ZYX))


def _row(plane: pictures.Plane, volumes: OpenVolumes) -> list[Picture]:
    base = pictures.gray(volumes.image.read(plane.box).squeeze(plane.axis), plane.size_pixels)
    row = [Picture("image", pictures.data_uri(base))]
    for title, volume in volumes.labels.items():
        ids = volume.read(plane.box).squeeze(plane.axis)
        row.append(Picture(title, pictures.data_uri(pictures.overlay(base, ids, volumes.color_ids[title]))))
    return row


def _extent(plane: pictures.Plane, voxel_size_zyx_nm: VoxelSize) -> str:
    """Return width and height in micrometres, and the position of the slice."""
    lengths = [n * size / 1000 for n, size in zip(plane.box.shape, voxel_size_zyx_nm, strict=True)]
    height, width = (length for axis, length in enumerate(lengths) if axis != plane.axis)
    return f"{width:.3g} × {height:.3g} µm at {'zyx'[plane.axis]} = {plane.box.start[plane.axis]}"
