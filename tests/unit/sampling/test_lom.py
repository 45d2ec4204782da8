import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.geometry import Box
from ffn.sampling.lom import lom_counts, require_lom_fits

from .tissue import RADIUS, count_by_definition, tissue


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("radius", [RADIUS, (1, 1, 6), (5, 2, 1)])
def test_counts_equal_the_definition(radius, threads):
    labels = tissue()
    ids = np.unique(labels)[1:]
    for chosen in (ids, ids[::3], ids[:0]):
        counts = lom_counts(labels, radius, chosen, threads)
        np.testing.assert_array_equal(counts, count_by_definition(labels, radius, chosen))


def test_labels_as_fine_as_voxels_are_counted():
    labels = np.random.default_rng(1).integers(0, 4, (9, 12, 20)).astype(np.uint64)
    ids = np.arange(1, 4, dtype=np.uint64)
    np.testing.assert_array_equal(lom_counts(labels, RADIUS, ids), count_by_definition(labels, RADIUS, ids))


def test_a_box_must_hold_one_lom():
    require_lom_fits(Box((0, 0, 0), (5, 9, 7)), RADIUS, "labels")
    with pytest.raises(VolumeError, match=r"5, 8, 7.*5, 9"):
        require_lom_fits(Box((0, 0, 0), (5, 8, 7)), RADIUS, "labels")
