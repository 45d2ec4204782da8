"""Signs that flood filling has gone wrong, from the counters and the segments of its subvolumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import count_ids
from ffn.geometry import VoxelSize
from ffn.inference.claims import GIVEN, STARTED, Filling

# Our choices. A neurite with a cross-section of 1 µm² fills most of a box of 1 µm and 15 % of one of 2.6 µm; on FIB-25,
# the largest segments of eight boxes of 1 µm hold 22 to 42 %, and two of them touch all six faces.
LARGEST_SHARE = 0.2  # of a subvolume
SMALL_BOX_SHARE = 0.6  # instead, where a thick neurite may hold more than that
THICK_UM2 = 1.0
MIN_SEEDS = 10  # with fewer, such as one given seed, one segment is expected
STUCK_SHARE = 0.8
UNDECIDED_SHARE = 0.5
MIN_VOXELS = 1000  # of the POM

CAUSE = (
    "Does the image have the contrast of the training data (model.image_mean, model.image_stddev), and its voxel size? "
    "Weights of another resolution or tissue do the same"
)


class Facts(NamedTuple):
    """Facts about the flood of a subvolume."""

    name: str  # of the subvolume
    largest_share: float  # share of the subvolume's voxels that its largest segment holds
    num_through: int  # segments that touch all six faces of the subvolume
    num_given: int  # segments that were there from the start
    side_um: float  # side of a cube as large as the subvolume, µm
    counters: Mapping[str, int]  # as in `Filling`

    @property
    def largest_allowed(self) -> float:
        """Share of the subvolume that one segment may hold."""
        return min(max(LARGEST_SHARE, THICK_UM2 / self.side_um**2), SMALL_BOX_SHARE)


def measured(filling: Filling, voxel_size_zyx_nm: VoxelSize) -> dict[str, Any]:
    """Return the facts besides the counters, ready for JSON; given segments do not count."""
    num_given = sum(origin.pass_number == GIVEN for origin in filling.origins)  # the first ids
    labels = np.where(filling.segmentation > num_given, filling.segmentation, 0)
    ids, voxels = count_ids(labels)
    faces = [labels.take(index, axis) for axis in range(3) for index in (0, -1)]
    through = set.intersection(*(set(np.unique(face[face > 0]).tolist()) for face in faces))
    return {
        "largest_share": int(voxels[ids > 0].max(initial=0)) / labels.size,
        "num_through": len(through),
        "num_given": num_given,
        "side_um": (labels.size * math.prod(voxel_size_zyx_nm)) ** (1 / 3) / 1000,
    }


def facts_of(name: str, record: Mapping[str, Any]) -> Facts | None:
    """Return the facts in the provenance of a subvolume; None if another version made it."""
    if record.get("sanity", {}).keys() != {"largest_share", "num_through", "num_given", "side_um"}:
        return None
    return Facts(name, **record["sanity"], counters=record["counters"])


def findings(facts: Sequence[Facts]) -> list[str]:
    """Return the signs of trouble in the subvolumes of one segmentation, one line for each kind."""
    lines = []
    for measure, text in SIGNS:
        found = [(measure(one), one.name) for one in facts if measure(one)]
        if found:
            others = f" ({len(found)} of {len(facts)} subvolumes looked at are like that)" if len(facts) > 1 else ""
            lines.append(f"{text.format(*max(found))}{others}. {CAUSE}")
    return lines


def _too_large(one: Facts) -> float:
    return one.largest_share if one.largest_share > one.largest_allowed else 0.0


def _through(one: Facts) -> float:
    return one.num_through if one.largest_allowed == LARGEST_SHARE else 0  # branches do so in a small box


def _alone(one: Facts) -> float:
    seeds, is_alone = one.counters["seeds"], one.counters["segments"] == 1 and not one.num_given
    return seeds if is_alone and seeds >= MIN_SEEDS else 0


def _stuck(one: Facts) -> float:
    started = sum(one.counters[name] for name in STARTED)
    share = one.counters["stuck"] / started if started >= MIN_SEEDS else 0.0
    return share if share > STUCK_SHARE else 0.0


def _undecided(one: Facts) -> float:
    undecided, in_object = one.counters["undecided_voxels"], one.counters["object_voxels"]
    share = undecided / (undecided + in_object) if undecided + in_object >= MIN_VOXELS else 0.0
    return share if share > UNDECIDED_SHARE else 0.0


# Each measure is 0 for a subvolume without the sign, and greater for one that shows it more clearly.
SIGNS: tuple[tuple[Callable[[Facts], float], str], ...] = (
    (_too_large, "a segment holds {:.0%} of {}"),
    (_through, "{} of the segments touch all six faces of {}"),
    (_alone, "of {} seeds only one became a segment in {}"),
    (_stuck, "{:.0%} of the objects never left their seed in {}"),
    (_undecided, "{:.0%} of the POM above 0.2 is below 0.8, so objects have no clear border, in {}"),
)
