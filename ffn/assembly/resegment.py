"""Judge a contact by the network: grow both segments again in a small window and compare the results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.assembly.contacts import Contact
from ffn.config import AgglomerateConfig
from ffn.geometry import ZYX, Box, VoxelSize, add, relative_sides, subtract, zyx
from ffn.inference.canvas import MASKED, Canvas, Thresholds, is_free
from ffn.inference.grower import FovBatch, Limits, ObjectGrower, grow
from ffn.io.masks import Masks
from ffn.io.volume import Volume, voxel_size_of
from ffn.model.normalize import Normalisation
from ffn.model.store import Model

NEARNESS = 0.25  # our choice: being one voxel deeper is worth being four voxels farther from the contact


@dataclass(frozen=True)
class Evidence:
    """Result of growing both sides of a contact. Shares count voxels inside the window.

    Parameters
    ----------
    fovs_a, fovs_b : int
        Network evaluations for each side; 0 if no voxel of the side can be a seed.
    recovered_aa, recovered_bb : float
        Share of each segment that its own object covers again: how far the window can be trusted.
    recovered_ab, recovered_ba : float
        Share of b that the object grown from a covers, and the reverse.
    agreement : float
        Voxels in both objects, as a share of the smaller object.
    iou : float
        Voxels in both objects, as a share of the voxels in either.
    deleted : float
        Share of both segments that neither object covers.
    """

    fovs_a: int
    fovs_b: int
    recovered_aa: float
    recovered_ab: float
    recovered_ba: float
    recovered_bb: float
    agreement: float
    iou: float
    deleted: float

    def score(self, config: AgglomerateConfig) -> float:
        """Return the agreement; 0 if a side did not recover itself or neither grew into the other."""
        own = min(self.recovered_aa, self.recovered_bb)
        crossing = max(self.recovered_ab, self.recovered_ba)
        trusted = own >= config.min_recovered and crossing >= config.min_crossing
        return self.agreement if trusted else 0.0


class Resegmenter:
    """Judge contacts by the network.

    Parameters
    ----------
    image, segmentation : Volume
        Raw image and base segmentation, read one window at a time.
    model : Model
        Architecture.
    batch : FovBatch
        Evaluates the network.
    config : AgglomerateConfig
        Thresholds, window size, limit of FOVs.
    normalisation : Normalisation
        Of the image.
    masks : Masks, optional
        Voxels that no object enters.

    Notes
    -----
    Source: resegmentation in Januszewski et al. 2018, Methods. Both segments are cleared, all others are masked, and
    each side is grown again from its own seed near the decision point.
    """

    def __init__(
        self,
        image: Volume,
        segmentation: Volume,
        model: Model,
        batch: FovBatch,
        config: AgglomerateConfig,
        normalisation: Normalisation,
        masks: Masks | None = None,
    ) -> None:
        self._image = image
        self._segmentation = segmentation
        self._model = model
        self._batch = batch
        self._config = config
        self._normalisation = normalisation
        self._masks = masks
        self._thresholds = Thresholds.of(config)
        self._sides = relative_sides(voxel_size_of(segmentation))

    def examine(self, contact: Contact) -> Evidence:
        """Grow both sides of `contact`."""
        window = self._window(contact.position_zyx)
        labels = self._segmentation.read(window)
        sides = [labels == segment_id for segment_id in contact.pair]
        image = self._normalisation.apply(self._image.read(window))
        occupied = np.where((labels != 0) & ~sides[0] & ~sides[1], MASKED, 0).astype(np.int32)
        if self._masks:
            occupied[self._masks.read(window)] = MASKED
        growers = [self._grower(image, occupied, side, subtract(contact.position_zyx, window.start)) for side in sides]
        grow([grower for grower in growers if grower is not None], self._batch)
        return compare(sides, [_object(grower, labels.shape) for grower in growers], [_fovs(g) for g in growers])

    def _window(self, position: ZYX) -> Box:
        """Return the window around `position`, moved into the volume."""
        whole = self._segmentation.box.intersect(self._image.box)
        return Box.around(position, self._config.window_radius_zyx).moved_into(whole)

    def _grower(self, image: np.ndarray, occupied: np.ndarray, side: np.ndarray, near: ZYX) -> ObjectGrower | None:
        canvas = Canvas(image, self._model.config, self._thresholds, occupied)
        seed = choose_seed(side, near, canvas.reach, self._sides)
        if seed is None:
            return None
        return ObjectGrower(canvas, seed, self._model.config.deltas_zyx, Limits(max_fovs=self._config.max_fovs))


def choose_seed(side: np.ndarray, near_zyx: ZYX, reach: Box, sides_zyx: VoxelSize) -> ZYX | None:
    """Return a voxel deep inside a segment and near a point, or None if the segment has no voxel in `reach`.

    Parameters
    ----------
    side : bool ndarray of shape (Z, Y, X)
        The segment.
    near_zyx : tuple of int
        The decision point, in voxels of `side`.
    reach : Box
        Positions where a FOV may be centred.
    sides_zyx : tuple of float
        Sides of a voxel in units of the smallest.
    """
    from scipy import ndimage

    inside = side[reach.slices()]
    if reach.is_empty or not inside.any():
        return None
    depth = ndimage.distance_transform_edt(np.pad(side, 1), sampling=sides_zyx)[1:-1, 1:-1, 1:-1][reach.slices()]
    z, y, x = (
        (np.arange(start, stop) - center) * unit
        for start, stop, center, unit in zip(reach.start, reach.stop, near_zyx, sides_zyx, strict=True)
    )
    away = np.sqrt(z[:, None, None] ** 2 + y[:, None] ** 2 + x**2)
    merit = np.where(inside, depth - NEARNESS * away, -np.inf)
    return add(zyx(np.unravel_index(int(merit.argmax()), merit.shape)), reach.start)


def compare(sides: list[np.ndarray], objects: list[np.ndarray], fovs: list[int]) -> Evidence:
    """Compare the objects grown from both sides with the segments and with each other.

    Parameters
    ----------
    sides, objects : two bool ndarrays of shape (Z, Y, X) each
        The segments a and b in the window, and the objects grown from them.
    fovs : two ints
        Network evaluations of each.
    """
    (a, b), (grown_a, grown_b) = sides, objects
    both, either = np.count_nonzero(grown_a & grown_b), np.count_nonzero(grown_a | grown_b)
    smaller = min(np.count_nonzero(grown_a), np.count_nonzero(grown_b))
    return Evidence(
        fovs_a=fovs[0],
        fovs_b=fovs[1],
        recovered_aa=_share(grown_a, a),
        recovered_ab=_share(grown_a, b),
        recovered_ba=_share(grown_b, a),
        recovered_bb=_share(grown_b, b),
        agreement=both / smaller if smaller else 0.0,
        iou=both / either if either else 0.0,
        deleted=1 - _share(grown_a | grown_b, a | b),
    )


def _share(of: np.ndarray, whole: np.ndarray) -> float:
    """Share of `whole` that `of` covers."""
    total = np.count_nonzero(whole)
    return float(np.count_nonzero(of & whole) / total) if total else 0.0


def _object(grower: ObjectGrower | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return the grown object as a mask of the window; empty if the seed did not survive."""
    mask = np.zeros(shape, bool)
    if grower is not None and grower.is_strong:
        box, grown = grower.canvas.object_mask()
        mask[box.slices()] = grown & is_free(grower.canvas.segmentation[box.slices()])
    return mask


def _fovs(grower: ObjectGrower | None) -> int:
    return 0 if grower is None else grower.num_fovs
