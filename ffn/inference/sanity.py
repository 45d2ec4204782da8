"""Signs that flood filling has gone wrong, from the counters and the segments of its subvolumes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ffn.contingency import count_ids
from ffn.geometry import VoxelSize
from ffn.inference.flood import GIVEN, STARTED, Origin

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
    counters: Mapping[str, int]  # as in `FloodFill`

    @property
    def largest_allowed(self) -> float:
        """Share of the subvolume that one segment may hold."""
        return min(max(LARGEST_SHARE, THICK_UM2 / self.side_um**2), SMALL_BOX_SHARE)


def measured(segmentation: np.ndarray, origins: Sequence[Origin], voxel_size_zyx_nm: VoxelSize) -> dict[str, Any]:
    """Return the facts besides the counters, ready for JSON; given segments do not count."""
    num_given = sum(origin.pass_number == GIVEN for origin in origins)  # the first ids
    labels = np.where(segmentation > num_given, segmentation, 0)
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
    found: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for one in facts:
        for sign, measure in _signs(one):
            found[sign].append((measure, one.name))
    lines = []
    for sign, shown in found.items():
        others = f" ({len(shown)} of {len(facts)} subvolumes looked at are like that)" if len(facts) > 1 else ""
        lines.append(f"{sign.format(*max(shown))}{others}. {CAUSE}")
    return lines


def _signs(one: Facts) -> Iterator[tuple[str, float]]:
    """Yield the signs that a subvolume shows, and how clearly."""
    counted, allowed = one.counters, one.largest_allowed
    if one.largest_share > allowed:
        yield "a segment holds {:.0%} of {}", one.largest_share
    if one.num_through and allowed == LARGEST_SHARE:  # branches do so in a small box
        yield "{} of the segments touch all six faces of {}", one.num_through
    if counted["segments"] == 1 and not one.num_given and counted["seeds"] >= MIN_SEEDS:
        yield "of {} seeds only one became a segment in {}", counted["seeds"]
    started = sum(counted[name] for name in STARTED)
    if started >= MIN_SEEDS and counted["stuck"] > STUCK_SHARE * started:
        yield "{:.0%} of the objects never left their seed in {}", counted["stuck"] / started
    undecided, visible = counted["undecided_voxels"], counted["undecided_voxels"] + counted["object_voxels"]
    if visible >= MIN_VOXELS and undecided > UNDECIDED_SHARE * visible:
        sign = "{:.0%} of the POM above 0.2 is below 0.8, so objects have no clear border, in {}"
        yield sign, undecided / visible
