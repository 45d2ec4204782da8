"""Independent objects that grow on their own canvases."""

import numpy as np
import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.inference.canvas import Canvas, Thresholds
from ffn.inference.grower import FovBatch, ObjectGrower

MODEL = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))


class Bright:
    """Engine whose object is what is bright; it records its batches."""

    def __init__(self):
        self.calls = []

    def predict(self, image, pom_logit):
        self.calls.append([float(i.max()) for i in image])
        return np.where(image > 0, image, np.float32(-4))


def grow(growers, batch):
    while batch.advance(growers):
        pass


def canvas(length, brightness):
    """Return a canvas with a bar along x."""
    image = np.full((7, 9, 30), -1, np.float32)
    image[3, 4, 4 : 4 + length] = brightness
    return Canvas(image, MODEL, Thresholds.of(SegmentConfig()))


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_independent_objects_grow_in_lockstep(batch_size):
    lengths = (3, 9, 20)
    canvases = [canvas(length, 3.0 + n) for n, length in enumerate(lengths)]
    engine = Bright()
    growers = [ObjectGrower(c, (3, 4, 5)) for c in canvases]
    grow(growers, FovBatch(engine, MODEL.fov_size_zyx, batch_size))
    for length, grower, c in zip(lengths, growers, canvases, strict=True):
        assert grower.is_strong and not grower.limited
        assert np.count_nonzero(c.object_mask()[1]) == length
    num_fovs = [grower.num_fovs for grower in growers]
    assert max(map(len, engine.calls)) == min(batch_size, len(growers))
    assert sum(map(len, engine.calls)) == sum(num_fovs)  # no FOV is computed twice
    assert len(engine.calls) == {1: sum(num_fovs), 2: len(engine.calls), 5: max(num_fovs)}[batch_size]
    assert not canvases[0].segmentation.any()


def test_a_next_position_that_was_taken_is_replaced():
    c = canvas(20, 3.0)
    grower = ObjectGrower(c, (3, 4, 12))
    batch = FovBatch(Bright(), MODEL.fov_size_zyx)
    batch.advance([grower])
    before = grower.next_position()
    assert before == grower.next_position()
    c.segmentation[before] = 1
    assert grower.next_position() not in (None, before)


def test_the_limit_counts_on_after_a_resume():
    def after(num_resumes):
        c = canvas(20, 3.0)
        grower = ObjectGrower(c, (3, 4, 5), 3)
        for _ in range(num_resumes):
            FovBatch(Bright(), MODEL.fov_size_zyx).advance([grower])
            state = {name: np.array(array) for name, array in grower.state().items()}
            grower = ObjectGrower.resume(canvas(20, 3.0), state, 3)
        grow([grower], FovBatch(Bright(), MODEL.fov_size_zyx))
        return grower.num_fovs, grower.limited, int(np.count_nonzero(grower.canvas.object_mask()[1]))

    assert after(0) == after(2)
    assert after(0)[1]
