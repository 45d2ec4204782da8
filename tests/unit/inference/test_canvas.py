import numpy as np
import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import Box
from ffn.inference.canvas import MASKED, REJECTED, Canvas, Thresholds, logit
from ffn.inference.flood import ObjectGrower
from ffn.inference.lanes import advance
from ffn.inference.movement import FaceMaxMovement, face_max_offsets

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


def test_new_voxels_are_not_frozen_and_the_next_seed_starts_on_a_clear_canvas():
    canvas = new_canvas()
    canvas.start(CENTER)
    canvas.write(CENTER, fov(-4))
    moved = canvas.write((5, 5, 6), fov(4))
    assert (moved[-1] == 4).all() and (moved[:-1] == -4).all()
    canvas = new_canvas()
    canvas.start(CENTER)
    canvas.write(CENTER, fov(1))
    canvas.start((4, 5, 5))
    assert np.argwhere(~np.isnan(canvas.pom_logit)).tolist() == [[4, 5, 5]]


def test_the_pom_is_padded_where_it_was_not_visited():
    canvas = new_canvas()
    canvas.start(CENTER)
    image, pom = canvas.read(CENTER)
    np.testing.assert_array_equal(image, canvas.image[2:7, 2:9, 2:11])
    assert pom[2, 3, 4] == pytest.approx(logit(0.95))
    assert np.count_nonzero(pom == np.float32(logit(0.05))) == pom.size - 1


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


DELTAS = (1, 2, 3)
MOVE_LOGIT = 2.0


def pom(**faces):
    """Return the POM of a FOV of 5 x 7 x 9 voxels that leads to the given faces."""
    logits = np.full((5, 7, 9), -4, np.float32)
    centers = {"up": (1, 3, 4), "down": (3, 3, 4), "left": (2, 3, 1), "right": (2, 3, 7)}
    for name, value in faces.items():
        logits[centers[name]] = value
    return logits


def moves(**faces):
    return face_max_offsets(pom(**faces), DELTAS, MOVE_LOGIT)


def test_face_offsets_are_sorted_by_score_and_reach_the_threshold():
    logits = pom(down=5, right=1)
    logits[2, 1, 2] = 7  # -y face
    assert face_max_offsets(logits, DELTAS, MOVE_LOGIT) == [(7.0, (0, -2, -2)), (5.0, (1, 0, 0))]
    logits = pom()
    logits[1, 2:5, 3:6] = 3
    assert face_max_offsets(logits, DELTAS, MOVE_LOGIT)[0] == (3.0, (-1, -1, -1))
    logits = pom()
    logits[3, 5, 7] = 3
    assert face_max_offsets(logits, DELTAS, MOVE_LOGIT) == [(3.0, (1, 2, 3))]
    logits = np.full((1, 7, 9), 3, np.float32)
    offsets = [offset for _, offset in face_max_offsets(logits, (0, 2, 3), MOVE_LOGIT)]
    assert all(z == 0 for z, _, _ in offsets) and len(offsets) == 3  # neighbouring faces share corners


def test_a_movement_comes_breadth_first_to_a_cell_once():
    movement = FaceMaxMovement((10, 10, 10), DELTAS)
    assert movement.pop() == (10, 10, 10)
    movement.follow((10, 10, 10), moves(down=3, right=5))
    assert movement.pop() == (10, 10, 13)
    movement.follow((10, 10, 13), moves(right=9))
    assert [movement.pop(), movement.pop(), movement.pop()] == [(11, 10, 10), (10, 10, 16), None]
    movement = FaceMaxMovement((10, 10, 10), DELTAS)
    assert movement.pop() == (10, 10, 10)
    movement.follow((10, 10, 10), moves(down=5))
    assert movement.pop() == (11, 10, 10)
    movement.follow((11, 10, 10), moves())
    movement.follow((9, 10, 10), moves(down=5))  # leads back to the cell of the seed
    assert movement.pop() is None
    movement = FaceMaxMovement((10, 10, 10), DELTAS, [(10, 10, 11), (11, 10, 10)], [(10, 10, 10)])
    assert movement.pop() == (11, 10, 10), "(10, 10, 11) is in the cell of the seed"


def test_moves_beyond_the_image_lead_to_what_is_mirrored_there():
    movement = FaceMaxMovement((10, 10, 10), DELTAS, inside=Box((10, 0, 0), (20, 11, 12)))
    assert movement.pop() == (10, 10, 10)
    movement.follow((10, 10, 10), moves(up=3, down=5, right=4))
    assert list(movement.queue) == [(11, 10, 10), (10, 10, 9), (11, 10, 10)]


SMALL = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))


class Bright:
    """Engine whose object is what is bright."""

    def predict(self, image, pom_logit):
        return np.where(image > 0, image, np.float32(-4))


def canvas_with(length, brightness):
    """Return a canvas with a bar along x."""
    image = np.full((7, 9, 30), -1, np.float32)
    image[3, 4, 4 : 4 + length] = brightness
    return Canvas(image, SMALL, Thresholds.of(SegmentConfig()))


def test_a_next_position_that_was_taken_is_replaced():
    c = canvas_with(20, 3.0)
    grower = ObjectGrower(c, (3, 4, 12))
    advance(Bright(), [grower])
    before = grower.next_position()
    assert before == grower.next_position()
    c.segmentation[before] = 1
    assert grower.next_position() not in (None, before)
