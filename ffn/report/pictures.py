"""Pictures of slices through image, ground truth and segmentation, and of the worst errors."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import imageio.v3 as iio
import numpy as np
from skimage.color import hsv2rgb
from skimage.transform import resize

from ffn.evaluation.baseline import middle_of
from ffn.evaluation.errors import best_bodies, gap_ends
from ffn.evaluation.scoring import tabulate
from ffn.geometry import Box, VoxelSize, zyx
from ffn.io.hdf5 import CHUNK_ZYX
from ffn.io.open import open_truth, open_volume
from ffn.io.volume import Volume, require_inside, voxel_size_of
from ffn.report.run_folder import VolumeFiles
from ffn.report.verdict import method_names

MAX_PIXELS = 480  # longest side of a picture: sharp on a phone, and the page stays at one or two megabytes
OPACITY = 0.45
CONTOUR = 0.35  # relative brightness of the lines between segments
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
MIN_LUMINANCE = 0.32
RING = 14  # radius in pixels
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio: multiples are far from each other (Knuth)
CLOSE_UP_NM = 1600.0  # side of a close-up
MAX_DRAWN_VOXELS = 10**9  # slices of a larger box show its middle: one job reads all of that
PIECES = (21, 17, 10, 32)  # ids whose colours differ most: red, cyan, yellow, violet

PLANES = {"xy": 0, "xz": 1, "yz": 2}


class Plane(NamedTuple):
    """A slice through the middle of a box."""

    name: str  # its axes, such as xy
    axis: int  # perpendicular to it
    box: Box  # one voxel thick along `axis`
    size_pixels: tuple[int, int]  # height and width, proportional to nanometres


def planes(box: Box, voxel_size_zyx_nm: VoxelSize, section: int | None = None) -> list[Plane]:
    """Return three orthogonal slices through the middle of `box`, or its `section`, all at the same scale."""
    lengths = [n * size for n, size in zip(box.shape, voxel_size_zyx_nm, strict=True)]
    pixels = [max(1, round(MAX_PIXELS * length / max(lengths))) for length in lengths]
    result = []
    for name, axis in PLANES.items():
        start, stop = list(box.start), list(box.stop)
        start[axis] = (start[axis] + stop[axis]) // 2
        if axis == 0 and section is not None:
            start[axis] = section
        stop[axis] = start[axis] + 1
        height, width = (pixels[other] for other in range(3) if other != axis)
        result.append(Plane(name, axis, Box(zyx(start), zyx(stop)), (height, width)))
    return result


def colors(ids: np.ndarray) -> np.ndarray:
    """Return a colour for every id. The same id always gets the same colour."""
    mixed = ids.astype(np.uint64) * GOLDEN  # so that consecutive ids get different colours
    parts = [(mixed >> np.uint64(shift) & np.uint64(0xFFFF)) / 0xFFFF for shift in (48, 32, 16)]
    rgb = hsv2rgb(np.stack([parts[0], 0.55 + 0.4 * parts[1], 0.7 + 0.3 * parts[2]], axis=-1))
    luminance = rgb @ LUMINANCE
    lift = np.clip((MIN_LUMINANCE - luminance) / (1 - luminance), 0, 1)[:, None]  # lightens dark blue
    return np.where(ids[:, None] == 0, 0.0, rgb + lift * (1 - rgb))


def gray(voxels: np.ndarray, size_pixels: tuple[int, int]) -> np.ndarray:
    """Return an image slice as RGB."""
    low, high = np.percentile(voxels, (0.5, 99.5))
    scaled = np.clip((voxels.astype(np.float64) - low) / max(high - low, 1e-9), 0, 1)
    smooth = resize(scaled, size_pixels, order=1, anti_aliasing=True)
    return np.repeat(smooth[..., None], 3, axis=-1)


def overlay(picture: np.ndarray, labels: np.ndarray, color_ids: dict[int, int] | None = None) -> np.ndarray:
    """Draw coloured labels over a gray picture, with lines between them."""
    labels = _nearest(labels, picture.shape[:2])
    ids, inverse = np.unique(labels, return_inverse=True)
    shown = np.array([(color_ids or {}).get(int(i), int(i)) for i in ids], dtype=np.uint64)
    tint = colors(shown)[inverse.reshape(labels.shape)]
    result = np.where(labels[..., None] == 0, picture, (1 - OPACITY) * picture + OPACITY * tint)
    result[borders(labels) & (labels != 0)] *= CONTOUR
    return result


def with_ring(picture: np.ndarray, y: float, x: float) -> np.ndarray:
    """Return a picture with a white ring around a place, given in parts of its sides."""
    rows, columns = np.ogrid[: picture.shape[0], : picture.shape[1]]
    distance = np.hypot(rows - y * picture.shape[0], columns - x * picture.shape[1])
    return np.where((np.abs(distance - RING) < 1.5)[..., None], 1.0, picture)


def data_uri(picture: np.ndarray) -> str:
    """Return a picture as a JPEG in a ``data:`` URI."""
    pixels = np.round(picture * 255).astype(np.uint8)
    encoded = iio.imwrite("<bytes>", pixels, extension=".jpg", quality=88, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(encoded).decode()


def _nearest(labels: np.ndarray, size_pixels: tuple[int, ...]) -> np.ndarray:
    rows, columns = (np.arange(n) * old // n for n, old in zip(size_pixels, labels.shape, strict=True))
    return labels[np.ix_(rows, columns)]


def borders(labels: np.ndarray) -> np.ndarray:
    """Mark voxels whose right or lower neighbour in their section has another label."""
    lines = np.zeros(labels.shape, dtype=bool)
    lines[..., :-1, :] |= labels[..., :-1, :] != labels[..., 1:, :]
    lines[..., :-1] |= labels[..., :-1] != labels[..., 1:]
    return lines


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
    drawn: Box  # of slices: the box, or the middle of a large one
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
    return [
        {"plane": plane, "extent": _extent(plane, size) + found, "pictures": _row(plane, volumes)}
        for plane in planes(volumes.drawn, size, section)
    ]


def _labelled(truth: Volume, box: Box) -> np.ndarray:
    """Return which sections of a box have labels, bool of shape (Z,)."""
    found = np.zeros(box.shape[0], bool)
    for block in box.blocks((64, 512, 512)):
        found[block.slices(box.start)[0]] |= truth.read(block).any(axis=(1, 2))
    return found


def close_up(volumes: OpenVolumes, error: dict[str, Any]) -> list[Picture]:
    """Draw image, ground truth and segmentation around an error, in the plane that holds both ends of its gap best.

    Only the objects involved are coloured.
    """
    size, ends = volumes.voxel_size_zyx_nm, gap_ends(error)
    axis = int(np.argmin(np.abs((ends[-1] - ends[0]) * size)))
    radius = [max(8, round(CLOSE_UP_NM / 2 / side)) for side in size]
    radius[axis] = 0
    box = Box.around(zyx(np.floor(np.mean(ends, axis=0))), zyx(radius)).moved_into(volumes.box)
    (plane,) = (plane for plane in planes(box, size) if plane.axis == axis)
    ids = {"truth": error["truth_ids"], volumes.own: error["segment_ids"]}
    row = []
    base = gray(volumes.image.read(box).squeeze(axis), plane.size_pixels)
    rings = [np.delete((end - box.start) / box.shape, axis) for end in ends]
    for title in ids:
        if title in volumes.labels:
            labels = volumes.labels[title].read(box).squeeze(axis)
            kept = np.where(np.isin(labels, np.array(ids[title], labels.dtype)), labels, 0)
            colors = {one: PIECES[i % len(PIECES)] for i, one in enumerate(ids[title])}
            shown = overlay(base, kept, colors)
            for place in rings:
                shown = with_ring(shown, *place)
            row.append(Picture(title, data_uri(shown)))
    return [Picture("image", data_uri(base)), *row]


def _color_ids(volume: Volume, labels: dict[str, Volume], box: Box) -> dict[int, int]:
    """Ids of the bodies whose colours the segments of `volume` get."""
    if "truth" not in labels or volume is labels["truth"]:
        return {}
    return best_bodies(tabulate(labels["truth"].read, volume.read, box, CHUNK_ZYX))


def _row(plane: Plane, volumes: OpenVolumes) -> list[Picture]:
    base = gray(volumes.image.read(plane.box).squeeze(plane.axis), plane.size_pixels)
    row = [Picture("image", data_uri(base))]
    for title, volume in volumes.labels.items():
        ids = volume.read(plane.box).squeeze(plane.axis)
        row.append(Picture(title, data_uri(overlay(base, ids, volumes.color_ids[title]))))
    return row


def _extent(plane: Plane, voxel_size_zyx_nm: VoxelSize) -> str:
    """Return width and height in micrometres, and the position of the slice."""
    lengths = [n * size / 1000 for n, size in zip(plane.box.shape, voxel_size_zyx_nm, strict=True)]
    height, width = (length for axis, length in enumerate(lengths) if axis != plane.axis)
    return f"{width:.3g} × {height:.3g} µm at {'zyx'[plane.axis]} = {plane.box.start[plane.axis]}"
