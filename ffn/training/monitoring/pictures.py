"""A picture of one training example: input, target and output of the network."""

from __future__ import annotations

import numpy as np

from ffn.training.walk import Slices, Walk

CELL_PIXELS = 160  # approximate width of a patch in the picture
GREY_RANGE = 2.5  # standard deviations below and above the mean that are drawn black and white
GAP_PIXELS = 4
BACKGROUND = 150  # differs from the black and white of cells
OUTLINE = (255, 140, 0)
CAPTION = "columns: image, ground truth, predicted object map, loss weight; rows: xy, xz, yz plane; frame: FOV"


def walk_picture(walk: Walk, window: Slices) -> np.ndarray:
    """Draw the central planes of an example's patch.

    Parameters
    ----------
    walk : Walk
        The example and its predicted object map (POM).
    window : tuple of slice
        The field of view (FOV) within the patch.

    Returns
    -------
    uint8 ndarray of shape (H, W, 3)
        Columns: image, ground truth, POM, loss weight; rows: planes xy, xz, yz. A frame shows the FOV.
    """
    example = walk.example
    pom_prob = 1 / (1 + np.exp(-np.clip(walk.canvas_logit, -30, 30)))
    columns = [
        _grey(example.image, -GREY_RANGE, GREY_RANGE),
        _grey(example.labels, 0, 1),
        _grey(pom_prob, 0, 1),
        _grey(example.loss_weight, 0, 1),
    ]
    zoom = max(1, CELL_PIXELS // max(example.image.shape))
    return np.vstack([_row(columns, axis, window, zoom) for axis in range(3)])


def _row(columns: list[np.ndarray], axis: int, window: Slices, zoom: int) -> np.ndarray:
    """Put the central planes of all arrays side by side, padded to the width of the widest plane."""
    width = max(columns[0].shape[1:]) * zoom
    first, second = (window[other] for other in range(3) if other != axis)
    cells = []
    for voxels in columns:
        plane = voxels.take(voxels.shape[axis] // 2, axis).repeat(zoom, 0).repeat(zoom, 1)
        cell = np.repeat(plane[..., None], 3, axis=2)
        _outline(cell, slice(first.start * zoom, first.stop * zoom), slice(second.start * zoom, second.stop * zoom))
        padding = ((0, GAP_PIXELS), (0, width - cell.shape[1] + GAP_PIXELS), (0, 0))
        cells.append(np.pad(cell, padding, constant_values=BACKGROUND))
    return np.hstack(cells)


def _outline(cell: np.ndarray, rows: slice, columns: slice) -> None:
    """Draw the border of a rectangle, just inside it."""
    for row in (rows.start, rows.stop - 1):
        cell[row, columns] = OUTLINE
    for column in (columns.start, columns.stop - 1):
        cell[rows, column] = OUTLINE


def _grey(voxels: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map ``[low, high]`` to grey levels; NaN becomes black."""
    scaled = (np.nan_to_num(voxels, nan=low) - low) * (255 / (high - low))
    return np.clip(scaled, 0, 255).astype(np.uint8)
