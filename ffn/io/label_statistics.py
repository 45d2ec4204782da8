"""What the values of a volume look like, by samples: labels that train a 3D network, sections, a mask, or an image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffn.geometry import Box, zyx
from ffn.io.volume import OUTSIDE, Volume, is_ignored

RADIUS = zyx((2, 128, 128))  # of samples at a quarter, a half and three quarters along each axis, voxels; our choice
NUM_SAMPLES = 3
# Mean runs of equal values along x, voxels: 1.03 to 1.05 in the images of FIB-25 and SNEMI3D (z < 64); 20 and 44 in
# their labels, 3.2 and 5.7 of every eighth voxel.
SHORT_RUN, LONG_RUN = 2, 4
MOSTLY = 0.9  # of the ids; our choice


class Statistics(NamedTuple):
    """Statistics of samples."""

    num_values: int  # 0, which also stands for ignored labels, is one
    run: float  # mean length of runs of equal values along x, without the most frequent value; nan if there are none
    num_thin: int  # values in one section alone, among `num_seen`, whose neighbouring sections are known
    num_seen: int
    has_rest: bool  # whether 0 is one of the values


def statistics_of(volume: Volume, box: Box) -> Statistics:
    """Return statistics of a part of a volume: all of it where it is small."""
    centres = np.linspace(box.start, box.stop, NUM_SAMPLES + 2).astype(int)[1:-1]
    samples = [Box.around(zyx(centre), RADIUS).intersect(box) for centre in centres]
    if box.num_voxels <= NUM_SAMPLES * Box.around((0, 0, 0), RADIUS).num_voxels:
        samples = [box]
    values: set[int] = set()
    kept, runs, thin, seen = 0, 0, 0, 0
    for sample in samples:
        voxels = volume.read(sample)
        voxels = np.where(is_ignored(voxels, OUTSIDE), voxels.dtype.type(0), voxels)
        found, places, counts = np.unique(voxels, return_inverse=True, return_counts=True)
        places = places.reshape(voxels.shape)
        counted = places != counts.argmax()
        starts = counted.copy()
        starts[..., 1:] &= places[..., 1:] != places[..., :-1]
        kept, runs = kept + int(counted.sum()), runs + int(starts.sum())
        present = np.zeros((len(found), len(voxels)), bool)
        for z, section in enumerate(places):
            present[section, z] = True
        first, last = int(sample.start[0] > box.start[0]), len(voxels) - int(sample.stop[0] < box.stop[0])
        inside = present[:, first:last].any(axis=1) & (found != 0)
        seen, thin = seen + int(inside.sum()), thin + int((inside & (present.sum(axis=1) == 1)).sum())
        values.update(found.tolist())
    return Statistics(len(values), kept / runs if runs else np.nan, thin, seen, 0 in values)


def doubts_about_labels(volume: Volume, box: Box | None = None) -> list[str]:
    """Return why the voxels of a volume may not be ids of objects in 3D, in words."""
    box = box or volume.box
    found = statistics_of(volume, box)
    doubts = []
    if found.run < SHORT_RUN:
        doubts.append(f"ids change every {found.run:.1f} voxels along x: is it an image?")
    elif box.shape[0] > 1 and found.num_seen and found.num_thin >= MOSTLY * found.num_seen:
        share = 100 * found.num_thin / found.num_seen
        doubts.append(
            f"{share:.0f} % of {found.num_seen} ids are one section thick: a 3D network needs labels that were joined "
            "across sections"
        )
    if found.num_values == 2 and found.has_rest:
        doubts.append("holds one id only: is it a mask? Every object needs an id of its own")
    return doubts


def doubts_about_image(volume: Volume) -> list[str]:
    """Return why the voxels of a volume may not be grey levels, in words."""
    found = statistics_of(volume, volume.box)
    if not found.run > LONG_RUN:
        return []
    return [
        f"holds {found.num_values} values in runs of {found.run:.1f} voxels along x: are they labels (--kind labels)?"
    ]
