import numpy as np
import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import Box
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.claims import GrownObject
from ffn.inference.grower import ObjectGrower

MODEL = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))
SEED = (3, 4, 5)


@pytest.fixture
def grower():
    """An object of three voxels in a row, the seed first, after one FOV."""
    canvas = Canvas(np.zeros((7, 9, 30), np.float32), MODEL, Thresholds.of(SegmentConfig()))
    grower = ObjectGrower(canvas, SEED)
    assert grower.next_position() == SEED
    update = np.full(MODEL.fov_size_zyx, -4, np.float32)
    update[1, 2, 3:6] = 9
    grower.put(update)
    return grower


def test_a_harvested_object_has_its_voxels_without_the_canvas(grower):
    grown = GrownObject.harvest(grower, min_voxels=3)
    assert grown.is_strong and not grown.limited and grown.num_fovs == 1
    assert grown.box == Box((2, 2, 2), (5, 7, 9))
    assert (np.argwhere(grown.probability > 0) + grown.box.start).tolist() == [[3, 4, 5], [3, 4, 6], [3, 4, 7]]
    before = grown.probability.copy()
    grower.canvas.start((3, 4, 20))
    assert np.array_equal(grown.probability, before)


@pytest.mark.parametrize(("min_voxels", "seed_logit"), [(4, 9), (1, 0)], ids=["too small", "weak"])
def test_an_object_that_becomes_no_segment_keeps_no_voxels(grower, min_voxels, seed_logit):
    grower.canvas.pom_logit[SEED] = seed_logit
    grown = GrownObject.harvest(grower, min_voxels)
    assert grown.probability.size == 0 and grown.box.is_empty
    assert grown.num_fovs == 1
