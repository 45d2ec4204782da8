import numpy as np
import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import Box
from ffn.inference.canvas import MASKED, REJECTED, Canvas, Thresholds, logit

MODEL = ModelConfig(fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3))
CENTER = (4, 5, 6)


def new_canvas(segmentation=None, **options):
    image = np.arange(9 * 11 * 13, dtype=np.float32).reshape(9, 11, 13)
    return Canvas(image, MODEL, Thresholds.of(SegmentConfig(**options)), segmentation)


def fov(value):
    return np.full(MODEL.fov_size_zyx, value, np.float32)


def test_frozen_background_stays_background():
    update = fov(-4)
    update[2, 3, 4] = 4
    on, off = new_canvas(), new_canvas(disco_seed_threshold=-1)
    for canvas in (on, off):
        canvas.start(CENTER)
        canvas.write(CENTER, update.copy())
    risen = on.write(CENTER, fov(4))
    assert risen[2, 3, 4] == 4
    assert np.count_nonzero(risen == -4) == risen.size - 1
    assert (off.write(CENTER, fov(4)) == 4).all()


def test_new_voxels_are_not_frozen():
    canvas = new_canvas()
    canvas.start(CENTER)
    canvas.write(CENTER, fov(-4))
    moved = canvas.write((5, 5, 6), fov(4))
    assert (moved[-1] == 4).all() and (moved[:-1] == -4).all()


def test_the_pom_is_padded_where_it_was_not_visited():
    canvas = new_canvas()
    canvas.start(CENTER)
    image, pom = canvas.read(CENTER)
    np.testing.assert_array_equal(image, canvas.image[2:7, 2:9, 2:11])
    assert pom[2, 3, 4] == pytest.approx(logit(0.95))
    assert np.count_nonzero(pom == np.float32(logit(0.05))) == pom.size - 1


def test_the_next_seed_starts_on_a_clear_canvas():
    canvas = new_canvas()
    canvas.start(CENTER)
    canvas.write(CENTER, fov(1))
    canvas.start((4, 5, 5))
    assert np.argwhere(~np.isnan(canvas.pom_logit)).tolist() == [[4, 5, 5]]


@pytest.mark.parametrize(("label", "is_free"), [(0, True), (REJECTED, True), (MASKED, False), (7, False)])
def test_the_fov_enters_free_voxels_only(label, is_free):
    canvas = new_canvas(np.full((9, 11, 13), label, np.int32))
    canvas.start(CENTER)
    assert bool(canvas.may_visit(CENTER)) == is_free
    canvas.pom_logit[CENTER] = canvas.thresholds.move - 0.01
    assert not canvas.may_visit(CENTER)


def test_voxels_that_fall_from_inside_to_outside_are_deleted():
    canvas = new_canvas()
    canvas.start(CENTER)
    first = fov(2.0)
    first[0] = 1.0  # a probability of 0.73
    canvas.write(CENTER, first)
    second = fov(2.0)
    second[:, 0], second[:, 1, 0] = -1.0, 0.5
    canvas.write(CENTER, second)
    assert canvas.num_deleted == 4 * 9  # of five rows that fall, four were inside
    canvas.start(CENTER)
    assert canvas.num_deleted == 0


def test_the_mirror_image_does_not_count():
    radius, (z, y, _) = MODEL.fov_radius_zyx, CENTER
    image, thresholds = np.zeros((9, 11, 13), np.float32), Thresholds.of(SegmentConfig())
    canvas = Canvas(image, MODEL, thresholds, inside=Box((z, 0, 0), (9, y + 1, 13)))
    canvas.start(CENTER)
    canvas.put(CENTER, fov(2.0))
    canvas.put(CENTER, fov(-2.0))
    assert canvas.num_deleted == (radius[0] + 1) * (radius[1] + 1) * MODEL.fov_size_zyx[2]
