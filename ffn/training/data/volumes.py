"""Volumes for training: image and ground truth together, where both exist, and the grey levels of the images."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import numpy as np

from ffn.config import Mask, Normalize
from ffn.errors import ModelError, VolumeError
from ffn.geometry import ZYX, Box, scale, zyx
from ffn.io.coarser import clahe_of
from ffn.io.masks import NO_MASKS, Masks, open_masks
from ffn.io.open import open_labels, open_volume
from ffn.io.volume import NO_SIZE, Volume, is_ignored, require_image, require_labels, require_same_voxel_size
from ffn.model.normalize import Normalisation, choose
from ffn.model.store import Model
from ffn.model.tissue import HISTOGRAM_DTYPES, Histogram, Tissue, count_levels, membranes_of, sample_blocks
from ffn.training.parallel.process_group import ProcessGroup

PRELOAD_BYTES = 512 * 2**20  # image plus labels up to this size stay in memory
# For labels of larger volumes. In types with a sign, `IGNORED` is -1.
SMALL_TYPES = ("int8", "int16", "int32")
BLOCK_ZYX: ZYX = (64, 128, 128)
CHECKSUM_BLOCK_ZYX: ZYX = (64, 64, 64)


Reader = Callable[[Box], np.ndarray]


class TrainingVolume:
    """Image and ground truth of one volume."""

    def __init__(self, name: str, image: Volume, labels: Volume, masks: Masks = NO_MASKS) -> None:
        require_image(image)
        require_labels(labels)
        require_same_voxel_size(labels, image)
        self.name = name
        self.box = image.box.intersect(labels.box)
        self.voxel_size_zyx_nm = image.voxel_size_zyx_nm
        self.clahe_tile = clahe_of(image)
        if self.box.is_empty:
            found = f"{labels.name}: the labels cover {labels.box} and the image {image.name} covers {image.box}"
            raise VolumeError(f"{found}, expected an overlap")
        self.image_dtype = image.dtype
        self.normalisation: Normalisation | None = None  # by default, mean and deviation of the model
        self._volumes = image, labels
        self._masks = masks
        self._is_small = self._fits(labels.dtype)
        self._read: tuple[Reader, Reader] = image.read, labels.read

    def load(self, group: ProcessGroup) -> None:
        """Read a volume that fits into memory. All processes call this together."""
        image, labels = self._volumes
        could_fit = not self._is_small and self._fits(np.dtype(SMALL_TYPES[0]))
        held = self._smallest(group) if could_fit else labels.dtype
        if self._fits(held):
            self._read = _loaded(image, self.box, image.dtype, group), _loaded(labels, self.box, held, group)

    def _fits(self, dtype: np.dtype) -> bool:
        """Whether image and labels have room in memory with labels of a type."""
        return self.box.num_voxels * (self.image_dtype.itemsize + dtype.itemsize) <= PRELOAD_BYTES

    def _smallest(self, group: ProcessGroup) -> np.dtype:
        """Return the smallest type that holds all labels. All processes call this together."""
        labels = self._volumes[1]
        low, high = -1, 0
        for block in islice(self.box.blocks(BLOCK_ZYX), group.rank, None, group.size):
            voxels = labels.read(block)
            known = voxels[~is_ignored(voxels)]
            low, high = min(low, int(known.min(initial=0))), max(high, int(known.max(initial=0)))
        low, high = min(group.gather(low)), max(group.gather(high))
        ranges = ((np.dtype(name), np.iinfo(name)) for name in SMALL_TYPES)
        return next((dtype for dtype, held in ranges if held.min <= low and high <= held.max), labels.dtype)

    def read_image(self, box: Box) -> np.ndarray:
        """Return the grey levels of `box`, of shape (Z, Y, X)."""
        return self._read[0](box)

    def read_grey_levels(self, box: Box) -> np.ndarray:
        """Return the grey levels in `box` that count, in any shape: where all masks are known and none masks them."""
        known = self._masks.covered(box)
        if known.is_empty:
            return np.empty(0, self.image_dtype)
        image = self.read_image(known)
        return image[~self._masks.read(known)] if self._masks else image

    def read_labels(self, box: Box) -> np.ndarray:
        """Return the segment ids of `box`, of shape (Z, Y, X)."""
        return self._read[1](box)

    def checksum(self) -> str:
        """Return a checksum of box, voxel size and voxels; of a large volume, only the central voxels count."""
        margin = tuple(max(0, n - f) // 2 for n, f in zip(self.box.shape, CHECKSUM_BLOCK_ZYX, strict=True))
        box = self.box if self._is_small else self.box.grow(scale(zyx(margin), -1))
        digest = hashlib.sha256(f"{self.box} {self.voxel_size_zyx_nm}".encode())
        labels = self.read_labels(box).astype(self._volumes[1].dtype, copy=False)  # as they are stored
        for voxels in (self.read_image(box), labels):
            digest.update(np.ascontiguousarray(voxels).reshape(-1).data)  # no copy, it may be half a gigabyte
        return digest.hexdigest()


def _loaded(volume: Volume, box: Box, dtype: np.dtype, group: ProcessGroup) -> Reader:
    """Return a reader of voxels in memory."""
    voxels = np.empty(box.shape, dtype)

    def load() -> None:
        for slab in box.blocks((BLOCK_ZYX[0], *box.shape[1:])):
            voxels[slab.slices(box.start)] = volume.read(slab)

    group.together(load)  # an error of any process ends all
    return lambda wanted: voxels[wanted.slices(box.start)]


@contextlib.contextmanager
def open_training_volumes(
    specs: Mapping[str, tuple[str, str]], masks: Mapping[str, Sequence[Mask]] | None = None
) -> Iterator[dict[str, TrainingVolume]]:
    """Open all volumes for the length of a ``with`` block."""

    def opened(name: str, image_spec: str, labels: str) -> TrainingVolume:
        image = stack.enter_context(open_volume(image_spec))
        masked = stack.enter_context(open_masks((masks or {}).get(name, ()), image.voxel_size_zyx_nm))
        return TrainingVolume(name, image, stack.enter_context(open_labels(labels)), masked)

    with contextlib.ExitStack() as stack:
        yield {name: opened(name, *spec) for name, spec in specs.items()}


def block_statistics(volume: TrainingVolume, share: int, num_shares: int) -> list[tuple[int, float, float]]:
    """Return voxels that count, their sum and sum of squares for every `num_shares`-th block, from block `share` on."""
    statistics = []
    for block in islice(volume.box.blocks(BLOCK_ZYX), share, None, num_shares):
        voxels = volume.read_grey_levels(block).astype(np.float64)
        statistics.append((voxels.size, float(voxels.sum()), float(np.square(voxels).sum())))
    return statistics


def mean_and_stddev(statistics: list[tuple[int, float, float]]) -> tuple[float, float]:
    """Combine the results of `block_statistics`; both values are NaN without voxels, or if one is not finite.

    The sums over blocks are correctly rounded, so they do not depend on the order of the blocks or on the shares.

    Examples
    --------
    >>> mean_and_stddev([(2, 10.0, 58.0), (2, 10.0, 58.0)])
    (5.0, 2.0)
    """
    if not np.isfinite(statistics).all():
        return math.nan, math.nan
    count, total, squares = (math.fsum(column) for column in zip(*statistics, strict=True))
    if not count:
        return math.nan, math.nan
    mean = total / count
    return mean, max(squares / count - mean**2, 0.0) ** 0.5


def with_contrast(
    model: Model,
    volumes: Mapping[str, TrainingVolume],
    trained_on: Mapping[str, object],
    methods: Mapping[str, Normalize],
    group: ProcessGroup,
) -> Model:
    """Normalise every volume by its method; return the model with the histogram of those that are trained on.

    All processes call this together. Each reads a share of the sampled blocks.
    """
    seen: list[Histogram] = []
    for name, volume in volumes.items():
        method, found = methods.get(name, "training"), _histogram(volume, group)
        normalisation = group.together(partial(_chosen, name, method, found, model))
        volume.normalisation = normalisation
        if name in trained_on and found is not None:
            seen.append(normalisation.in_grey_levels(found, model.config))
    return dataclasses.replace(model, histogram=Histogram.together(seen) if len(seen) == len(trained_on) else None)


def tissue_of(volumes: Mapping[str, TrainingVolume]) -> Tissue:
    """Return voxel sizes, side of membranes and CLAHE of volumes that are trained on."""
    tiles = {volume.clahe_tile for volume in volumes.values()}
    size = {volume.voxel_size_zyx_nm: volume for volume in volumes.values()}
    sides = {membranes_of(v.read_image, v.box, v.voxel_size_zyx_nm or NO_SIZE) for v in volumes.values()} - {None}
    side, tile = sides.pop() if len(sides) == 1 else None, tiles.pop() if len(tiles) == 1 else None
    return Tissue(tuple(one for one in size if one), side, tile)


def _histogram(volume: TrainingVolume, group: ProcessGroup) -> Histogram | None:
    """Return the histogram of a sample of a volume; None of one that is no integer image, or all masked."""
    if volume.image_dtype not in HISTOGRAM_DTYPES:
        return None
    counts = count_levels(np.empty(0, volume.image_dtype))
    for block in islice(sample_blocks(volume.box), group.rank, None, group.size):
        counts += count_levels(volume.read_grey_levels(block))
    total = group.sum(counts)
    return Histogram.of_counts(total) if total.any() else None


def _chosen(name: str, method: Normalize, found: Histogram | None, model: Model) -> Normalisation:
    if found is None and method in ("volume", "match"):
        expected = "expected uint8 or uint16 and voxels that are not masked. Ingest the image, or correct the masks"
        raise VolumeError(f"{name}: normalize: {method} needs a histogram, {expected}")
    try:
        return choose(method, found, model.config, model.histogram)
    except ModelError as error:
        raise ModelError(f"volumes.{name}.normalize: the initial model {error}") from None
