import numpy as np

from ffn.geometry import Box
from ffn.inference.movement import FaceMaxMovement, face_max_offsets

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


def test_ties_in_a_face_go_to_the_first_voxel_in_c_order():
    logits = pom()
    logits[1, 2:5, 3:6] = 3
    assert face_max_offsets(logits, DELTAS, MOVE_LOGIT)[0] == (3.0, (-1, -1, -1))


def test_a_corner_shared_by_faces_is_queued_once():
    logits = pom()
    logits[3, 5, 7] = 3
    assert face_max_offsets(logits, DELTAS, MOVE_LOGIT) == [(3.0, (1, 2, 3))]


def test_an_axis_with_delta_0_has_no_faces():
    logits = np.full((1, 7, 9), 3, np.float32)
    offsets = [offset for _, offset in face_max_offsets(logits, (0, 2, 3), MOVE_LOGIT)]
    assert all(z == 0 for z, _, _ in offsets) and len(offsets) == 3  # neighbouring faces share corners


def test_positions_come_breadth_first():
    movement = FaceMaxMovement((10, 10, 10), DELTAS)
    assert movement.pop() == (10, 10, 10)
    movement.follow((10, 10, 10), moves(down=3, right=5))
    assert movement.pop() == (10, 10, 13)
    movement.follow((10, 10, 13), moves(right=9))
    assert [movement.pop(), movement.pop(), movement.pop()] == [(11, 10, 10), (10, 10, 16), None]


def test_a_cell_is_visited_once():
    movement = FaceMaxMovement((10, 10, 10), DELTAS)
    assert movement.pop() == (10, 10, 10)
    movement.follow((10, 10, 10), moves(down=5))
    assert movement.pop() == (11, 10, 10)
    movement.follow((11, 10, 10), moves())
    movement.follow((9, 10, 10), moves(down=5))  # leads back to the cell of the seed
    assert movement.pop() is None


def test_a_resumed_movement_knows_the_cells_it_visited():
    movement = FaceMaxMovement((10, 10, 10), DELTAS, [(10, 10, 11), (11, 10, 10)], [(10, 10, 10)])
    assert movement.pop() == (11, 10, 10), "(10, 10, 11) is in the cell of the seed"


def test_moves_beyond_the_image_lead_to_what_is_mirrored_there():
    movement = FaceMaxMovement((10, 10, 10), DELTAS, inside=Box((10, 0, 0), (20, 11, 12)))
    assert movement.pop() == (10, 10, 10)
    movement.follow((10, 10, 10), moves(up=3, down=5, right=4))
    assert list(movement.queue) == [(11, 10, 10), (10, 10, 9), (11, 10, 10)]
