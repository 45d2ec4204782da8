"""Pictures of slices through image, ground truth and segmentation."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import imageio.v3 as iio
import numpy as np
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D
from mpl_toolkits.mplot3d.art3d import Poly3DCollection
from scipy import ndimage
from skimage.color import hsv2rgb
from skimage.measure import marching_cubes
from skimage.transform import resize

from ffn.geometry import Box, VoxelSize, zyx

MAX_PIXELS = 480  # longest side of a picture: sharp on a phone, and the page stays at one or two megabytes
OPACITY = 0.45
CONTOUR = 0.35  # relative brightness of the lines between segments
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])
MIN_LUMINANCE = 0.32
RING = 14  # radius in pixels
SMOOTHING = 0.7  # voxels, of surfaces

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
    mixed = _mixed(ids.astype(np.uint64))  # so that consecutive ids get different colours
    parts = [(mixed >> np.uint64(shift) & np.uint64(0xFFFF)) / 0xFFFF for shift in (0, 16, 32)]
    rgb = hsv2rgb(np.stack([parts[0], 0.55 + 0.4 * parts[1], 0.7 + 0.3 * parts[2]], axis=-1))
    luminance = rgb @ LUMINANCE
    lift = np.clip((MIN_LUMINANCE - luminance) / (1 - luminance), 0, 1)[:, None]  # lightens dark blue
    return np.where(ids[:, None] == 0, 0.0, rgb + lift * (1 - rgb))


def _mixed(values: np.ndarray) -> np.ndarray:
    """Hash uint64 values (the finaliser of SplitMix64, Steele et al. 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ values >> np.uint64(shift)) * np.uint64(factor)
    return values ^ values >> np.uint64(31)


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
    result[_contours(labels)] *= CONTOUR
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


def surfaces_uri(labels: np.ndarray, spacing_zyx_nm: np.ndarray, color_of: dict[int, np.ndarray]) -> str:
    """Draw the surfaces of some labels in 3D, as a WebP picture in a ``data:`` URI."""
    figure = Figure(figsize=(5.6, 5.6), dpi=120)
    axes = Axes3D(figure, elev=24, azim=-52)
    figure.add_axes(axes)
    axes.set_position((0, 0, 1, 1))
    axes.set_axis_off()
    lengths = np.array(labels.shape)[::-1] * spacing_zyx_nm[::-1]
    axes.set(xlim=(0, lengths[0]), ylim=(lengths[1], 0), zlim=(lengths[2], 0))
    axes.set_box_aspect(lengths, zoom=1.15)
    triangles = [_surface(labels == label, spacing_zyx_nm) for label in color_of]
    if triangles:  # in one collection, whose triangles are drawn from the farthest to the nearest
        colors = np.repeat(list(color_of.values()), [len(part) for part in triangles], axis=0)
        axes.add_collection3d(
            Poly3DCollection(np.concatenate(triangles), facecolors=colors, shade=True, antialiased=False)
        )
    file = io.BytesIO()
    figure.savefig(file, transparent=True)
    encoded = iio.imwrite("<bytes>", iio.imread(file.getvalue()), extension=".webp", quality=90)
    return "data:image/webp;base64," + base64.b64encode(encoded).decode()


def _surface(inside: np.ndarray, spacing_zyx_nm: np.ndarray) -> np.ndarray:
    """Return the triangles around an object, smoothed so that voxels do not show as stairs, xyz."""
    smooth = ndimage.gaussian_filter(np.pad(inside, 2).astype(np.float32), SMOOTHING)
    if smooth.max() <= 0.5:
        return np.empty((0, 3, 3))
    vertices, faces, _, _ = marching_cubes(smooth, 0.5, spacing=tuple(spacing_zyx_nm))
    return (vertices - 2 * spacing_zyx_nm)[:, ::-1][faces]


def _nearest(labels: np.ndarray, size_pixels: tuple[int, ...]) -> np.ndarray:
    rows, columns = (np.arange(n) * old // n for n, old in zip(size_pixels, labels.shape, strict=True))
    return labels[np.ix_(rows, columns)]


def _contours(labels: np.ndarray) -> np.ndarray:
    """Pixels of segments whose right or lower neighbour has another label."""
    lines = np.zeros(labels.shape, dtype=bool)
    lines[:-1] |= labels[:-1] != labels[1:]
    lines[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    return lines & (labels != 0)
