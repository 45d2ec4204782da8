"""Render neurons in 3D without a browser or a GPU: surfaces, a depth buffer, shading."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from scipy import ndimage
from skimage.measure import marching_cubes

SMOOTHING = 0.7  # voxels; without it, the voxels show as stairs
AZIMUTH, ELEVATION = np.radians(38.0), np.radians(24.0)
SUPERSAMPLING = 2
LIGHT_XYZ = np.array([-0.45, 0.6, 0.66])  # from the left, above and behind the viewer
DEPTH_SHADING = 0.9  # how much to darken what lies behind a nearer edge (Luft et al. 2006)
EDGES_GRAY = 0.55


class View(NamedTuple):
    """Projection from nanometres to pixels of the supersampled picture.

    Parameters
    ----------
    rotation : float64 ndarray of shape (3, 3)
        Maps zyx to right, up, towards the viewer.
    centre_nm : float64 ndarray of shape (3,)
        Point in the middle of the picture, zyx.
    scale : float
        Pixels per nanometre.
    size_pixels : tuple of int
        Height and width.
    """

    rotation: np.ndarray
    centre_nm: np.ndarray
    scale: float
    size_pixels: tuple[int, int]

    def project(self, points_zyx_nm: np.ndarray) -> np.ndarray:
        """Return column, row and depth (larger is nearer), float32 of shape (N, 3)."""
        seen = (points_zyx_nm - self.centre_nm) @ self.rotation.T * self.scale
        height, width = self.size_pixels
        return np.stack([seen[:, 0] + width / 2, height / 2 - seen[:, 1], seen[:, 2]], -1).astype(np.float32)


class Buffers(NamedTuple):
    """Buffers of the supersampled picture, of shape (H, W, …).

    Parameters
    ----------
    depth : float32 ndarray
        Larger is nearer; -inf where nothing is drawn.
    normal : float32 ndarray of shape (H, W, 3)
        Right, up, towards the viewer.
    color : float32 ndarray of shape (H, W, 3)
        RGB in [0, 1].
    """

    depth: np.ndarray
    normal: np.ndarray
    color: np.ndarray


def render(
    labels: np.ndarray, spacing_zyx_nm: np.ndarray, colors: dict[int, np.ndarray], width_pixels: int
) -> np.ndarray:
    """Draw some objects of a label volume, and the edges of its box.

    Parameters
    ----------
    labels : integer ndarray of shape (Z, Y, X)
        At most a few hundred voxels along each axis.
    spacing_zyx_nm : ndarray of shape (3,)
        Sides of a voxel.
    colors : dict of int to ndarray of shape (3,)
        Objects to draw, with their RGB in [0, 1].
    width_pixels : int
        Width of the picture; the height follows from it.

    Returns
    -------
    uint8 ndarray of shape (H, W, 4)
        RGBA. The background is transparent, so it suits light and dark pages.
    """
    view = _view(np.array(labels.shape) * spacing_zyx_nm, SUPERSAMPLING * width_pixels)
    shape = view.size_pixels
    buffers = Buffers(
        np.full(shape, -np.inf, np.float32), np.zeros((*shape, 3), np.float32), np.zeros((*shape, 3), np.float32)
    )
    wanted = np.array(sorted(colors), np.uint64)
    index = np.searchsorted(wanted, labels.ravel()).clip(max=len(wanted) - 1).reshape(labels.shape)
    index = (
        np.where(wanted[index] == labels, index + 1, 0).astype(np.int32) if len(wanted) else np.zeros((1, 1, 1), int)
    )
    for i, place in enumerate(ndimage.find_objects(index), start=1):
        if place is not None:
            color = np.asarray(colors[int(wanted[i - 1])], np.float32)
            _draw(buffers, view, index[place] == i, place, spacing_zyx_nm, color)
    rgba = np.concatenate([_shade(buffers), np.isfinite(buffers.depth)[..., None]], axis=-1)
    _draw_box(rgba, buffers.depth, view, np.array(labels.shape) * spacing_zyx_nm)
    return _reduce(rgba)


def _view(extent_nm: np.ndarray, width_pixels: int) -> View:
    """Return a view of a box from the front, the right and above, so that the box fills the picture."""
    a, e = AZIMUTH, ELEVATION
    turn = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    tilt = np.array([[1, 0, 0], [0, np.cos(e), -np.sin(e)], [0, np.sin(e), np.cos(e)]])
    from_zyx = np.array([[0, 0, 1], [0, -1, 0], [-1, 0, 0]])  # x to the right, y downwards, z away
    rotation = tilt @ turn @ from_zyx
    width, height = np.abs(rotation[:2] * extent_nm).sum(axis=1) * 1.02
    scale = width_pixels / width
    rows = SUPERSAMPLING * round(height * scale / SUPERSAMPLING)
    return View(rotation, extent_nm / 2, scale, (rows, width_pixels))


def _draw(
    buffers: Buffers,
    view: View,
    mask: np.ndarray,
    place: tuple[slice, ...],
    spacing_zyx_nm: np.ndarray,
    color: np.ndarray,
) -> None:
    """Draw the surface of one object."""
    solid = ndimage.gaussian_filter(np.pad(mask, 2).astype(np.float32), SMOOTHING)
    if not solid.max() > 0.5:
        return
    vertices, faces, normals, _ = marching_cubes(solid, 0.5, gradient_direction="descent")
    first = np.array([s.start for s in place])
    points = view.project((vertices - 2 + first + 0.5) * spacing_zyx_nm)
    normals = (normals / spacing_zyx_nm) @ view.rotation.T
    normals /= np.linalg.norm(normals, axis=1, keepdims=True).clip(min=1e-9)
    _rasterise(points, normals.astype(np.float32), faces.astype(np.int32), color, buffers)


@numba.njit(cache=True)
def _rasterise(
    points: np.ndarray,
    normals: np.ndarray,
    faces: np.ndarray,
    color: np.ndarray,
    buffers: Buffers,
) -> None:
    """Fill triangles with interpolated normals and depths. The nearest triangle wins."""
    depth, normal, colors = buffers.depth, buffers.normal, buffers.color
    height, width = depth.shape
    for f in range(faces.shape[0]):
        a, b, c = faces[f]
        ax, ay, bx, by, cx, cy = points[a, 0], points[a, 1], points[b, 0], points[b, 1], points[c, 0], points[c, 1]
        area = (bx - ax) * (cy - ay) - (by - ay) * (cx - ax)
        if area == 0.0:
            continue
        for row in range(max(0, int(min(ay, by, cy))), min(height, int(max(ay, by, cy)) + 2)):
            for column in range(max(0, int(min(ax, bx, cx))), min(width, int(max(ax, bx, cx)) + 2)):
                v = ((column - ax) * (cy - ay) - (row - ay) * (cx - ax)) / area
                w = ((bx - ax) * (row - ay) - (by - ay) * (column - ax)) / area
                u = 1.0 - v - w
                if u < 0.0 or v < 0.0 or w < 0.0:
                    continue
                z = u * points[a, 2] + v * points[b, 2] + w * points[c, 2]
                if z > depth[row, column]:
                    depth[row, column] = z
                    for i in range(3):
                        normal[row, column, i] = u * normals[a, i] + v * normals[b, i] + w * normals[c, i]
                        colors[row, column, i] = color[i]


def _shade(buffers: Buffers) -> np.ndarray:
    """Shade the surfaces, and darken what lies just behind something nearer; return RGB."""
    seen = np.isfinite(buffers.depth)
    light = LIGHT_XYZ / np.linalg.norm(LIGHT_XYZ)
    diffuse = np.clip(0.5 + 0.5 * (buffers.normal @ light), 0, 1) ** 1.4
    half = (light + [0, 0, 1]) / np.linalg.norm(light + [0, 0, 1])
    gloss = np.clip(buffers.normal @ half, 0, 1) ** 40
    brightness = 0.22 + 0.9 * diffuse
    if seen.any():
        near, far = buffers.depth[seen].max(), buffers.depth[seen].min()
        depth = np.where(seen, (buffers.depth - far) / max(near - far, 1e-6), 0.0)
        width = buffers.depth.shape[1] / 90
        weight = ndimage.gaussian_filter(seen.astype(np.float32), width)
        around = ndimage.gaussian_filter(depth, width) / np.maximum(weight, 1e-6)
        brightness *= 1 - DEPTH_SHADING * np.clip(around - depth, 0, 0.6)
        brightness *= 0.78 + 0.22 * depth  # fades slightly with distance
    return np.clip(buffers.color * brightness[..., None] + 0.16 * gloss[..., None], 0, 1)


def _draw_box(rgba: np.ndarray, depth: np.ndarray, view: View, extent_nm: np.ndarray) -> None:
    """Draw the edges of the box where no object is in front of them."""
    corners = np.array(list(np.ndindex(2, 2, 2)))
    for start in corners:
        for axis in np.flatnonzero(start == 0):
            stop = start + np.eye(3, dtype=int)[axis]
            along = np.linspace(0, 1, 4 * max(depth.shape))[:, None]
            column, row, z = view.project((start * (1 - along) + stop * along) * extent_nm).T
            for shift in (0, 1):
                x, y = column.astype(int), row.astype(int) + shift
                inside = (x >= 0) & (y >= 0) & (x < depth.shape[1]) & (y < depth.shape[0])
                x, y, nearer = x[inside], y[inside], z[inside]
                free = nearer >= depth[y, x]
                rgba[y[free], x[free]] = (EDGES_GRAY, EDGES_GRAY, EDGES_GRAY, 1)


def _reduce(rgba: np.ndarray) -> np.ndarray:
    """Reduce the supersampled picture: average blocks of pixels, with colours weighted by opacity."""
    n = SUPERSAMPLING
    height, width = rgba.shape[0] // n, rgba.shape[1] // n
    blocks = rgba[: height * n, : width * n].reshape(height, n, width, n, 4)
    alpha = blocks[..., 3:].mean(axis=(1, 3))
    color = (blocks[..., :3] * blocks[..., 3:]).mean(axis=(1, 3)) / np.maximum(alpha, 1e-6)
    return np.round(255 * np.concatenate([color, alpha], axis=-1)).astype(np.uint8)
