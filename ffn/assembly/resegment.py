"""Ask the network about a contact: grow both sides anew in a small window and compare what they become."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffn.assembly.contacts import Contact
from ffn.config import AgglomerateConfig
from ffn.geometry import ZYX, Box, VoxelSize, add, relative_sides, subtract, zyx
from ffn.inference.canvas import MASKED, Canvas, Thresholds, is_free
from ffn.inference.grower import FovBatch, Limits, ObjectGrower, grow
from ffn.io.volume import Volume, voxel_size_of
from ffn.model.store import Model, normalise

NEARNESS = 0.25  # our choice: a seed may lie four voxels farther from the contact for one more from the membrane


@dataclass(frozen=True)
class Evidence:
    """What growing both sides of a contact showed; shares count voxels inside the window.

    Parameters
    ----------
    fovs_a, fovs_b : int
        Network evaluations of each side; 0 where it has no place for a seed.
    recovered_aa, recovered_bb : float
        Share of the own segment that each side grew again: how far the window can be trusted.
    recovered_ab, recovered_ba : float
        Share of b that a's object took, and of a that b's object took.
    agreement : float
        Voxels that both objects hold, as a share of the smaller object.
    iou : float
        Voxels that both hold, as a share of those that either holds.
    deleted : float
        Share of both segments that neither object holds.
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
        """Return the agreement, or 0 where a side did not recover itself or none went over to the other."""
        own = min(self.recovered_aa, self.recovered_bb)
        crossing = max(self.recovered_ab, self.recovered_ba)
        trusted = own >= config.min_recovered and crossing >= config.min_crossing
        return self.agreement if trusted else 0.0


class Resegmenter:
    """The network as a judge of contacts.

    Parameters
    ----------
    image, segmentation : Volume
        Raw image and base segmentation, read one window at a time.
    model : Model
        The network's architecture and normalisation.
    batch : FovBatch
        The network.
    config : AgglomerateConfig
        Thresholds, size of the window, limit.

    Notes
    -----
    After the resegmentation of Januszewski et al. 2018, Methods: everything but the two segments is masked, both are
    free again, and each side is grown from a seed of its own near the decision point.
    """

    def __init__(
        self, image: Volume, segmentation: Volume, model: Model, batch: FovBatch, config: AgglomerateConfig
    ) -> None:
        self._image = image
        self._segmentation = segmentation
        self._model = model
        self._batch = batch
        self._config = config
        self._thresholds = Thresholds.of(config)
        self._sides = relative_sides(voxel_size_of(segmentation))

    def examine(self, contact: Contact) -> Evidence:
        """Grow both sides of `contact`."""
        window = self._window(contact.position_zyx)
        labels = self._segmentation.read(window)
        sides = [labels == segment_id for segment_id in contact.pair]
        image = normalise(self._image.read(window), self._model)
        occupied = np.where((labels != 0) & ~sides[0] & ~sides[1], MASKED, 0).astype(np.int32)
        growers = [self._grower(image, occupied, side, subtract(contact.position_zyx, window.start)) for side in sides]
        grow([grower for grower in growers if grower is not None], self._batch)
        return compare(sides, [_object(grower, labels.shape) for grower in growers], [_fovs(g) for g in growers])

    def _window(self, position: ZYX) -> Box:
        """Return the box around `position`, moved inside the volume where it is large enough."""
        whole = self._segmentation.box.intersect(self._image.box)
        return Box.around(position, self._config.window_radius_zyx).moved_into(whole)

    def _grower(self, image: np.ndarray, occupied: np.ndarray, side: np.ndarray, near: ZYX) -> ObjectGrower | None:
        canvas = Canvas(image, self._model.config, self._thresholds, occupied)
        seed = choose_seed(side, near, canvas.reach, self._sides)
        if seed is None:
            return None
        return ObjectGrower(canvas, seed, self._model.config.deltas_zyx, Limits(max_fovs=self._config.max_fovs))


def choose_seed(side: np.ndarray, near_zyx: ZYX, reach: Box, sides_zyx: VoxelSize) -> ZYX | None:
    """Return the voxel of a segment that lies deep inside it and near a point, None if it has none in `reach`.

    Parameters
    ----------
    side : bool ndarray of shape (Z, Y, X)
        The segment.
    near_zyx : tuple of int
        The decision point, in the same voxels.
    reach : Box
        Where the centre of a FOV may be.
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
    """Compare what grew from both sides with the segments and with each other.

    Parameters
    ----------
    sides, objects : two bool ndarrays of shape (Z, Y, X) each
        The segments a and b in the window, and the objects grown from them.
    fovs : two ints
        Network evaluations.
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
    """Share of `whole` that `of` holds."""
    total = np.count_nonzero(whole)
    return float(np.count_nonzero(of & whole) / total) if total else 0.0


def _object(grower: ObjectGrower | None, shape: tuple[int, ...]) -> np.ndarray:
    """Return what has grown as a mask of the window; nothing where the seed was lost."""
    mask = np.zeros(shape, bool)
    if grower is not None and grower.is_strong:
        box, grown = grower.canvas.object_mask()
        mask[box.slices()] = grown & is_free(grower.canvas.segmentation[box.slices()])
    return mask


def _fovs(grower: ObjectGrower | None) -> int:
    return 0 if grower is None else grower.num_fovs
