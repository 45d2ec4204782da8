"""The evidence of growing both sides of a contact, and where they are grown from."""

import numpy as np
import pytest

from ffn.assembly.contacts import Contact
from ffn.assembly.resegment import ONE_SIDED, CountingCanvas, Grown, Resegmenter, choose_seed, compare
from ffn.config import AgglomerateConfig, ModelConfig
from ffn.geometry import Box
from ffn.inference.canvas import Thresholds
from ffn.inference.grower import FovBatch
from ffn.io.open import open_volume
from ffn.model.normalize import Normalisation
from ffn.model.store import Model

from ..volumes import write

CONFIG = AgglomerateConfig()


def halves():
    a = np.zeros((4, 6, 10), bool)
    b = a.copy()
    a[1:3, 1:5, :5], b[1:3, 1:5, 5:] = True, True
    return a, b


def evidence(*objects, num_deleted=(0, 0)):
    """What `compare` makes of objects that have grown from the halves."""
    a, b = halves()
    grown = [Grown(mask, 5, 1, lost) for mask, lost in zip(objects, num_deleted, strict=True)]
    return compare([a, b], grown, (1.5, 2.0))


def test_two_halves_of_one_object_agree():
    a, b = halves()
    found = evidence(a | b, a | b)
    assert (found.voxels_a, found.voxels_b, found.radius_a, found.radius_b) == (40, 40, 1.5, 2.0)
    assert (found.tries_a, found.fovs_a, found.tries_b, found.fovs_b) == (1, 5, 1, 5)
    assert (found.recovered_aa, found.recovered_ab, found.recovered_ba, found.recovered_bb) == (1, 1, 1, 1)
    assert (found.agreement, found.iou, found.deleted_a, found.deleted_b, found.lost) == (1, 1, 0, 0, 0)
    assert found.score(CONFIG) == 1.0


def test_two_objects_that_stay_apart_do_not_agree():
    a, b = halves()
    found = evidence(a, b)
    assert (found.recovered_ab, found.recovered_ba, found.agreement) == (0, 0, 0)
    assert found.score(CONFIG) == 0.0


def test_an_object_that_swallows_another_that_never_enters_it_is_weak_evidence():
    a, b = halves()
    for objects in ((a | b, b), (a, a | b)):
        found = evidence(*objects)
        assert found.agreement == 1 and found.iou == 0.5
        assert found.score(CONFIG) == ONE_SIDED < 1
        assert found.score(CONFIG.model_copy(update={"min_crossing": 0})) == 1.0


def test_an_object_that_left_its_own_segment_is_no_evidence():
    a, b = halves()
    found = evidence(b, a | b)
    assert found.recovered_aa == 0 and found.agreement == 1
    assert found.score(CONFIG) == 0.0
    assert found.score(CONFIG.model_copy(update={"min_recovered": 0})) == 1.0


def test_an_object_that_lost_much_of_itself_is_no_evidence():
    a, b = halves()
    found = evidence(a | b, a | b, num_deleted=(0, 8))
    assert (found.deleted_a, found.deleted_b) == (0, 0.1)
    assert found.score(CONFIG) == 0.0
    assert found.score(CONFIG.model_copy(update={"max_deleted": 0.1})) == 1.0


def test_agreement_counts_the_smaller_object():
    a, b = halves()
    small = a & (np.arange(10) >= 2)
    found = evidence(small, b | small)
    assert found.agreement == 1.0 and found.iou == pytest.approx(24 / 64)
    assert found.recovered_ba == pytest.approx(0.6) and found.lost == pytest.approx(16 / 80)


def test_sides_that_did_not_grow_score_zero():
    nothing = np.zeros_like(halves()[0])
    anything = CONFIG.model_copy(update={"min_recovered": 0, "min_crossing": 0})
    assert evidence(nothing, nothing).score(anything) == 0


def test_voxels_that_fall_from_inside_to_outside_are_deleted():
    model = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 5), deltas_zyx=(1, 1, 1))
    canvas = CountingCanvas(np.zeros((5, 5, 9), np.float32), model, Thresholds.of(AgglomerateConfig()))
    canvas.start((2, 2, 4))
    first = np.full((3, 3, 5), 2.0, np.float32)
    first[0] = 1.0  # a probability of 0.73
    canvas.write((2, 2, 4), first)
    second = np.full((3, 3, 5), 2.0, np.float32)
    second[:, 0], second[:, 1, 0] = -1.0, 0.5
    canvas.write((2, 2, 4), second)
    assert canvas.num_deleted == 2 * 5  # of three rows that fall, two were inside


class Choosy:
    """A network that only grows from the seeds it likes: those where the image is 1."""

    def predict(self, image, pom_logit):
        centre = image[:, 1, 1, 2]
        return np.where(centre[:, None, None, None] > 0.5, np.where(image >= 0, 4.0, -4.0), -4.0).astype(np.float32)


def test_a_side_that_does_not_recover_itself_is_grown_from_another_seed(tmp_path):
    labels = np.zeros((7, 9, 40), np.uint64)
    labels[1:6, 1:8, 1:20], labels[1:6, 1:8, 20:39] = 3, 8
    image = np.where(labels > 0, 129, 127).astype(np.uint8)
    image[2:5, 3:6, 17:20] = 128  # in front of the contact, side a has nothing to grow from
    specs = (write(tmp_path / f"{name}.h5", v) for name, v in (("labels", labels), ("image", image)))
    model = Model(
        ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 5), deltas_zyx=(1, 1, 2), image_mean=128, image_stddev=1),
        {},
        {},
    )
    tries = {}
    with open_volume(next(specs)) as segmentation, open_volume(next(specs)) as raw:
        for most in (1, 9):
            config = AgglomerateConfig(window_radius_zyx=(3, 4, 20), max_tries=most, max_fovs=None)
            judge = Resegmenter(
                raw, segmentation, model, FovBatch(Choosy(), (3, 3, 5)), config, Normalisation.of_model(model.config)
            )
            tries[most] = judge.examine(Contact(3, 8, (3, 4, 19), 1.0, 1))
    assert tries[1].tries_a == tries[1].tries_b == tries[9].tries_b == 1 < tries[9].tries_a
    assert tries[1].recovered_aa == 0 and tries[9].recovered_aa > 0.2 and tries[9].recovered_bb > 0.2


def test_the_seed_lies_deep_inside_its_side_and_near_the_contact():
    side = np.zeros((9, 9, 40), bool)
    side[1:8, 1:8, :] = True
    reach = Box((2, 2, 3), (7, 7, 37))
    z, y, x = choose_seed(side, (4, 4, 20), reach, (1.0, 1.0, 1.0))
    assert (z, y, x) == (4, 4, 20)
    assert choose_seed(side, (4, 4, 39), reach, (1.0, 1.0, 1.0)) == (4, 4, 36)
    assert choose_seed(np.zeros_like(side), (4, 4, 20), reach, (1.0, 1.0, 1.0)) is None
    assert choose_seed(side, (4, 4, 20), Box((2, 2, 3), (2, 7, 37)), (1.0, 1.0, 1.0)) is None


def test_depth_is_measured_in_the_smallest_side():
    side = np.zeros((7, 21, 21), bool)
    side[1:6, 3:18, 3:18] = True  # 5 sections, each as thick as 3 voxels
    assert choose_seed(side, (3, 10, 10), Box.from_shape(side.shape), (3.0, 1.0, 1.0)) == (3, 10, 10)
