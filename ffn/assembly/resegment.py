"""Judge a contact by the network: grow both segments again in a small window and compare the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ffn.assembly.contacts import Contact
from ffn.config import AgglomerateConfig
from ffn.geometry import ZYX, Box, VoxelSize, add, relative_sides, subtract, zyx
from ffn.inference.canvas import MASKED, Canvas, Thresholds, is_free, logit
from ffn.inference.grower import FovBatch, Limits, ObjectGrower, grow
from ffn.io.masks import Masks
from ffn.io.volume import Volume, voxel_size_of
from ffn.model.normalize import Normalisation
from ffn.model.store import Model

INSIDE_LOGIT = logit(0.8)  # with 0.5, the two limits of google/ffn for a voxel that was deleted
ONE_SIDED = 0.6  # our choice: a threshold above it needs both sides
NEARNESS = 0.25  # our choice: being one voxel deeper is worth being four voxels farther from the contact


@dataclass(frozen=True)
class Evidence:
    """Result of growing both sides of a contact. All counts and shares are of voxels inside the window.

    Parameters
    ----------
    voxels_a, voxels_b : int
        Size of each segment.
    radius_a, radius_b : float
        Largest distance of a voxel of the segment from its surface, in units of the smallest voxel side.
    tries_a, tries_b : int
        Seeds tried for each side; 0 if no voxel of the side can be a seed.
    fovs_a, fovs_b : int
        Network evaluations from the seed that counts.
    recovered_aa, recovered_bb : float
        Share of each segment that its own object covers again: how far the window can be trusted.
    recovered_ab, recovered_ba : float
        Share of b that the object grown from a covers, and the reverse.
    agreement : float
        Voxels in both objects, as a share of the smaller object.
    iou : float
        Voxels in both objects, as a share of the voxels in either.
    deleted_a, deleted_b : float
        Voxels that the object lost again while it grew (POM from 0.8 or more to less than 0.5), as a share of it.
    lost : float
        Share of both segments that neither object covers.
    """

    voxels_a: int
    voxels_b: int
    radius_a: float
    radius_b: float
    tries_a: int
    tries_b: int
    fovs_a: int
    fovs_b: int
    recovered_aa: float
    recovered_ab: float
    recovered_ba: float
    recovered_bb: float
    agreement: float
    iou: float
    deleted_a: float
    deleted_b: float
    lost: float

    def score(self, config: AgglomerateConfig) -> float:
        """Return how much the two sides agree.

        The agreement, or `ONE_SIDED` of it if only one side grew into the other. 0 if neither did, or if a side did not
        recover itself or lost too much of its object.
        """
        crossing = sorted((self.recovered_ab, self.recovered_ba))
        own = min(self.recovered_aa, self.recovered_bb)
        steady = max(self.deleted_a, self.deleted_b) <= config.max_deleted
        if own < config.min_recovered or crossing[1] < config.min_crossing or not steady:
            return 0.0
        return self.agreement if crossing[0] >= config.min_crossing else ONE_SIDED * self.agreement


class CountingCanvas(Canvas):
    """A canvas that counts the voxels that an object loses again.

    Attributes
    ----------
    num_deleted : int
        Voxels whose POM fell from 0.8 or more to less than 0.5 in one evaluation, added over all.
    """

    num_deleted = 0

    def write(self, position_zyx: ZYX, pom_logit: np.ndarray) -> np.ndarray:
        """Write the output of the network to the canvas, and count."""
        where = self.fov(position_zyx).slices()
        was_inside = self.pom_logit[where] >= INSIDE_LOGIT
        written = super().write(position_zyx, pom_logit)
        self.num_deleted += int(np.count_nonzero(was_inside & (written < 0)))
        return written


@dataclass(frozen=True)
class Grown:
    """What one side of a contact has grown to.

    Parameters
    ----------
    mask : bool ndarray of shape (Z, Y, X)
        The object in the window; empty if the seed did not survive.
    num_fovs, num_tries : int
        As in `Evidence`.
    num_deleted : int
        As in `CountingCanvas`.
    """

    mask: np.ndarray
    num_fovs: int = 0
    num_tries: int = 0
    num_deleted: int = 0

    @property
    def deleted(self) -> float:
        """Voxels lost again, as a share of the object."""
        return self.num_deleted / max(1, int(np.count_nonzero(self.mask)), self.num_deleted)


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
        near = subtract(contact.position_zyx, window.start)
        grown = self._grown(image, occupied, sides, near)
        return compare(sides, grown, [_radius(side, self._sides) for side in sides])

    def _grown(self, image: np.ndarray, occupied: np.ndarray, sides: list[np.ndarray], near: ZYX) -> list[Grown]:
        """Grow both sides; one that does not leave its seed or recover its own segment is grown from other seeds."""
        best = [Grown(np.zeros(side.shape, bool)) for side in sides]
        allowed = [side.copy() for side in sides]
        for attempt in range(1, self._config.max_tries + 1):
            wanted = [n for n in (0, 1) if attempt == 1 or self._failed(best[n], sides[n])]
            growers = {n: self._grower(image, occupied, sides[n], allowed[n], near) for n in wanted}
            growing = {n: grower for n, grower in growers.items() if grower is not None}
            grow(list(growing.values()), self._batch)
            for n, grower in growing.items():
                new = _result(grower, attempt)
                merits = [(grown.num_fovs > 1, _share(grown.mask, sides[n])) for grown in (best[n], new)]
                best[n] = new if merits[1] > merits[0] or attempt == 1 else replace(best[n], num_tries=attempt)
                around = Box.around(grower.seed_zyx, self._model.config.deltas_zyx)
                allowed[n][around.intersect(Box.from_shape(zyx(image.shape))).slices()] = False
        return best

    def _window(self, position: ZYX) -> Box:
        """Return the window around `position`, moved into the volume."""
        whole = self._segmentation.box.intersect(self._image.box)
        return Box.around(position, self._config.window_radius_zyx).moved_into(whole)

    def _failed(self, grown: Grown, side: np.ndarray) -> bool:
        return grown.num_fovs <= 1 or _share(grown.mask, side) < self._config.min_recovered

    def _grower(
        self, image: np.ndarray, occupied: np.ndarray, side: np.ndarray, allowed: np.ndarray, near: ZYX
    ) -> ObjectGrower | None:
        canvas = CountingCanvas(image, self._model.config, self._thresholds, occupied)
        seed = choose_seed(side, near, canvas.reach, self._sides, allowed)
        if seed is None:
            return None
        return ObjectGrower(canvas, seed, self._model.config.deltas_zyx, Limits(max_fovs=self._config.max_fovs))


def choose_seed(
    side: np.ndarray, near_zyx: ZYX, reach: Box, sides_zyx: VoxelSize, allowed: np.ndarray | None = None
) -> ZYX | None:
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
    allowed : bool ndarray of shape (Z, Y, X), optional
        The part of the segment that may be chosen; default all.
    """
    if reach.is_empty:
        return None
    inside = (side if allowed is None else allowed)[reach.slices()]
    if not inside.any():
        return None
    depth = _depth(side, sides_zyx)[reach.slices()]
    z, y, x = (
        (np.arange(start, stop) - center) * unit
        for start, stop, center, unit in zip(reach.start, reach.stop, near_zyx, sides_zyx, strict=True)
    )
    away = np.sqrt(z[:, None, None] ** 2 + y[:, None] ** 2 + x**2)
    merit = np.where(inside, depth - NEARNESS * away, -np.inf)
    return add(zyx(np.unravel_index(int(merit.argmax()), merit.shape)), reach.start)


def compare(sides: list[np.ndarray], grown: list[Grown], radii: Sequence[float]) -> Evidence:
    """Compare the objects grown from both sides with the segments and with each other.

    Parameters
    ----------
    sides : two bool ndarrays of shape (Z, Y, X)
        The segments a and b in the window.
    grown : two Grown
        The objects grown from them.
    radii : two floats
        Of the segments, as in `Evidence`.
    """
    (a, b), (grown_a, grown_b) = sides, (g.mask for g in grown)
    both, either = np.count_nonzero(grown_a & grown_b), np.count_nonzero(grown_a | grown_b)
    smaller = min(np.count_nonzero(grown_a), np.count_nonzero(grown_b))
    return Evidence(
        voxels_a=int(np.count_nonzero(a)),
        voxels_b=int(np.count_nonzero(b)),
        radius_a=radii[0],
        radius_b=radii[1],
        tries_a=grown[0].num_tries,
        tries_b=grown[1].num_tries,
        fovs_a=grown[0].num_fovs,
        fovs_b=grown[1].num_fovs,
        recovered_aa=_share(grown_a, a),
        recovered_ab=_share(grown_a, b),
        recovered_ba=_share(grown_b, a),
        recovered_bb=_share(grown_b, b),
        agreement=both / smaller if smaller else 0.0,
        iou=both / either if either else 0.0,
        deleted_a=grown[0].deleted,
        deleted_b=grown[1].deleted,
        lost=1 - _share(grown_a | grown_b, a | b),
    )


def _depth(side: np.ndarray, sides_zyx: VoxelSize) -> np.ndarray:
    """Distance of each voxel of a segment from its surface; the border of the window counts as surface."""
    from scipy import ndimage

    return ndimage.distance_transform_edt(np.pad(side, 1), sampling=sides_zyx)[1:-1, 1:-1, 1:-1]


def _radius(side: np.ndarray, sides_zyx: VoxelSize) -> float:
    return float(_depth(side, sides_zyx).max(initial=0))


def _share(of: np.ndarray, whole: np.ndarray) -> float:
    """Share of `whole` that `of` covers."""
    total = np.count_nonzero(whole)
    return float(np.count_nonzero(of & whole) / total) if total else 0.0


def _result(grower: ObjectGrower, attempt: int) -> Grown:
    """Return the grown object as a mask of the window; empty if the seed did not survive."""
    canvas = grower.canvas
    assert isinstance(canvas, CountingCanvas)
    mask = np.zeros(canvas.shape, bool)
    if grower.is_strong:
        box, grown = canvas.object_mask()
        mask[box.slices()] = grown & is_free(canvas.segmentation[box.slices()])
    return Grown(mask, grower.num_fovs, attempt, canvas.num_deleted)
