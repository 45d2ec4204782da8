"""What a segmentation is scored with besides the ground truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ffn.config import Mask
from ffn.io.masks import mask_inputs


@dataclass(frozen=True)
class References:
    """Optional inputs of an evaluation: a baseline, skeletons, what earlier stages made, masks.

    Parameters
    ----------
    image : str, optional
        Image to segment by watershed, as the baseline.
    baseline : str, optional
        Segmentation to use as the baseline instead.
    baseline_out : str, optional
        ``NAME.zarr`` or ``FILE.h5:DATASET`` to save the best watershed in.
    skeletons : str, optional
        Skeletons of the ground truth, for the expected run length; see `ffn.evaluation.skeletons.read_skeletons`.
    earlier : mapping of str to str
        Segmentations that earlier stages of the run made, by their names.
    masks : tuple of Mask
        Voxels that are not scored.
    """

    image: str | None = None
    baseline: str | None = None
    baseline_out: str | None = None
    skeletons: str | None = None
    earlier: Mapping[str, str] = field(default_factory=dict)
    masks: tuple[Mask, ...] = ()

    def inputs(self) -> dict[str, str]:
        """Return the inputs that are given, for the provenance."""
        read = {"image": self.image, "baseline": self.baseline, "skeletons": self.skeletons, **self.earlier}
        return {name: spec for name, spec in read.items() if spec} | mask_inputs(self.masks)

    def files(self) -> list[str]:
        """Return all that is read, masks included."""
        read = [self.image, self.baseline, self.skeletons, *self.earlier.values(), *(mask.path for mask in self.masks)]
        return [spec for spec in read if spec]

    def compared(self) -> dict[str, str]:
        """Return what blocks are compared with besides the segmentation and the ground truth, in its order."""
        skeletons = {"skeletons": self.skeletons} if self.skeletons else {}
        return skeletons | {f"earlier {i}": spec for i, spec in enumerate(self.earlier.values())}
