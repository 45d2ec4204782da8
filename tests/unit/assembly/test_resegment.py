"""Both sides of a contact are grown again: where from, how often, and the same on several canvases at once."""

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from ffn.assembly.config import Agglomeration
from ffn.assembly.contacts import ALONE, Contact, Scene
from ffn.assembly.merge_graph import ONE_SIDED
from ffn.assembly.resegment import Grown, Judge, Side, best_seed, compare, measured_side, resegmented
from ffn.config import Mask, ModelConfig
from ffn.geometry import Box
from ffn.inference import lanes
from ffn.inference.lanes import HostLanes
from ffn.io.masks import open_masks
from ffn.io.open import open_volume
from ffn.model.store import Model

from ..networks import JaxOnHost, follower, network_of
from ..volumes import write


class Choosy:
    """A network that only grows from the seeds it likes: those where the image is 1."""

    name = "choosy"

    def predict(self, image, pom_logit):
        centre = image[:, 1, 1, 2]
        return np.where(centre[:, None, None, None] > 0.5, np.where(image >= 0, 4.0, -4.0), -4.0).astype(np.float32)


CHOSEN = Model(
    ModelConfig(depth=1, features=2, fov_size_zyx=(3, 3, 5), deltas_zyx=(1, 1, 2), image_mean=128, image_stddev=1),
    {},
    {},
)


@pytest.fixture
def judge_of(tmp_path):
    """Return a function that opens image and segmentation."""
    with contextlib.ExitStack() as stack:

        def opened(image, labels, model, config, masks=(), engine="openvino"):
            volumes = {"image": image, "labels": labels}
            specs = [write(tmp_path / f"{name}.zarr", voxels) for name, voxels in volumes.items()]
            raw, segmentation = (stack.enter_context(open_volume(spec)) for spec in specs)
            masked = stack.enter_context(open_masks(masks, raw.voxel_size_zyx_nm))
            return Judge(Scene(segmentation, raw, ALONE, masked), network_of(model, engine), config)

        yield opened


@pytest.fixture
def compared(judge_of, monkeypatch):
    """Function that returns the evidence of a contact of 3 and 8 where a network grows in what is bright."""

    def evidence_of(labels, place, config, image=None, network=Choosy):
        monkeypatch.setattr(lanes, "create_engine", lambda *_, **__: network())
        here = judge_of(bright(labels) if image is None else image, labels, CHOSEN, config)
        ((_, found),) = resegmented(here, [Contact(3, 8, place, 1.0, 1)], HostLanes(here.network, config))
        return found

    return evidence_of


def bright(labels):
    return np.where(labels > 0, 129, 127).astype(np.uint8)


def two_bars():
    labels = np.zeros((7, 9, 40), np.uint64)
    labels[1:6, 1:8, 1:20], labels[1:6, 1:8, 20:39] = 3, 8
    return labels


def test_a_side_that_does_not_recover_itself_is_grown_from_another_seed(compared, monkeypatch):
    image = bright(two_bars())
    image[2:5, 3:6, 17:20] = 128  # in front of the contact, side a has nothing to grow from
    tries = {}
    for most in (1, 9):
        monkeypatch.setattr("ffn.assembly.resegment.MAX_TRIES", most)
        config = Agglomeration(window_radius_zyx=(3, 4, 20), max_fovs=None, max_deleted=1)
        tries[most] = compared(two_bars(), (3, 4, 19), config, image)
    assert tries[1].tries_a == tries[9].tries_b == 1 < tries[9].tries_a
    assert tries[1].tries_b == tries[1].fovs_b == 0 and math.isnan(tries[1].score(Agglomeration()))
    assert tries[1].recovered_aa == 0 and tries[9].recovered_aa > 0.2 and tries[9].recovered_bb > 0.2


class Doubtful(Choosy):
    """A network that is less sure of the voxel in the middle than of those around it."""

    def predict(self, image, pom_logit):
        answer = super().predict(image, pom_logit)
        answer[:, 1, 1, 2] = 1.0
        return answer


def test_the_map_of_a_weak_seed_is_kept_and_the_rim_that_no_fov_centre_reaches_does_not_count(compared):
    """The first FOV leaves the seed below the threshold of moves, so that nothing else grows."""
    config = Agglomeration(window_radius_zyx=(3, 4, 20), mirror=False)
    found = compared(two_bars(), (3, 4, 19), config, network=Doubtful)
    assert (found.voxels_a, found.voxels_b) == (5 * 7 * 18, 5 * 7 * 18)  # of 5 * 7 * 19
    assert found.fovs_a == 1 and found.recovered_aa == pytest.approx(45 / (5 * 7 * 18))


def test_a_side_is_grown_again_from_where_the_other_enters_it(compared):
    """Segment a has a part far from the contact, which is deeper and so has the first seed."""
    labels = np.zeros((19, 19, 60), np.uint64)
    labels[2:17, 2:17, 1:16] = labels[8:11, 1:18, 18:30] = 3
    labels[8:11, 1:18, 30:50] = 8
    config = Agglomeration(window_radius_zyx=(9, 9, 30), max_fovs=None, min_recovered=0.1, min_crossing=0.1)
    found = compared(labels, (9, 9, 29), config)
    assert (found.tries_a, found.tries_b) == (2, 1)
    assert found.recovered_ab > 0.4 and found.recovered_aa < 0.3 and found.agreement > 0.9


@pytest.mark.parametrize(("mirror", "more"), [(True, 0), (False, 0), (False, 9)])
def test_contacts_at_the_faces_of_a_segmentation_are_judged(judge_of, mirror, more, monkeypatch):
    """Two sections at the face, where a FOV with a radius of 2 is centred only if the image goes on, by `more`."""
    labels = np.zeros((12, 21, 40), np.uint64)
    labels[-2:, 1:20, 1:20], labels[-2:, 1:20, 20:39] = 3, 8
    pytest.importorskip("jax")
    monkeypatch.setattr(lanes, "create_engine", JaxOnHost)
    monkeypatch.setattr("ffn.assembly.resegment.MAX_TRIES", 1)
    image = np.pad(np.where(labels > 0, 160, 90).astype(np.uint8), [(0, more), (0, 0), (0, 0)], constant_values=90)
    config = Agglomeration(window_radius_zyx=(4, 10, 20), mirror=mirror, min_recovered=0, max_deleted=1, min_crossing=1)
    here = judge_of(image, labels, follower(NETWORK), config)
    ((_, found),) = resegmented(here, [Contact(3, 8, (10, 10, 19), 1.0, 1)], HostLanes(here.network, config))
    sees = mirror or more > 0
    assert found.voxels_a == found.voxels_b and (found.voxels_a > 0) == sees  # where FOVs are centred
    assert (found.tries_a, found.tries_b) == ((1, 1) if sees else (0, 0))
    assert (found.recovered_aa > 0) == (found.agreement > 0) == sees


def test_contacts_of_a_single_section_are_judged(compared):
    """Within a FOV, the faces of the image are no surface of a segment, and moves beyond them lead back into it."""
    labels = np.zeros((1, 21, 40), np.uint64)
    labels[0, 1:20, 1:20], labels[0, 1:20, 20:39] = 3, 8
    config = Agglomeration(window_radius_zyx=(4, 10, 20), max_fovs=None)
    found = compared(labels, (0, 10, 19), config)
    assert found.radius_a == found.radius_b == 2
    assert min(found.recovered_aa, found.recovered_ab) > 0.3 and found.agreement > 0.9


NETWORK = ModelConfig(
    depth=2, features=4, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3), image_mean=120.5, image_stddev=31.7
)
SHAPE, PIECE_ZYX = (30, 36, 44), (30, 12, 11)


def pieces():
    """Return a grey image, its bright parts cut into pieces, and many contacts between neighbours."""
    rng = np.random.default_rng(3)
    image = ndimage.gaussian_filter(rng.normal(size=SHAPE), 2)
    raw = np.clip(128 + 40 * image / image.std(), 0, 255).astype(np.uint8)
    _, row, column = np.indices(SHAPE) // np.reshape(PIECE_ZYX, (3, 1, 1, 1))
    labels = np.where(raw > 118, 1 + 4 * row + column, 0).astype(np.uint64)
    bright = np.argwhere((labels[:, :, :-1] != labels[:, :, 1:]) & (labels[:, :, :-1] > 0) & (labels[:, :, 1:] > 0))
    places = [tuple(map(int, place)) for place in bright[:: len(bright) // 7]]
    contacts = [Contact(int(labels[p]), int(labels[p]) + 1, p, float(raw[p]), 1) for p in places]
    return raw, labels, contacts


@pytest.mark.slow
def test_many_contacts_at_once_have_the_evidence_of_one_after_another(judge_of, monkeypatch):
    """Windows wait for a canvas, the last leaves one free, and a mask keeps objects out; on a CPU in float32."""
    pytest.importorskip("jax")
    monkeypatch.setattr(lanes, "create_engine", JaxOnHost)
    raw, labels, contacts = pieces()
    # On canvases as in tests/unit/inference/device/test_lanes.py, so JAX compiles one program for both.
    limits = {"max_fovs": 20, "min_recovered": 0.5, "move_threshold": 0.9, "disco_seed_threshold": 0.3}
    config = Agglomeration(window_radius_zyx=(8, 9, 12), **limits)
    here = judge_of(raw, labels, follower(NETWORK), config, [Mask(box="0:30,20:36,0:44")], "jax")

    one_by_one = list(resegmented(here, contacts, HostLanes(here.network, config)))
    assert [contact for contact, _ in one_by_one] == contacts
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    several = replace(here, config=config.model_copy(update={"canvases": 64})).open_lanes(4)
    assert several.size == 4
    assert list(resegmented(here, contacts, several)) == one_by_one
    found = [evidence for _, evidence in one_by_one]
    assert max(e.fovs_a for e in found) == 20 and len({e.fovs_b for e in found}) > 2  # objects of all sizes
    assert max(e.tries_a for e in found) == 3 and any(e.deleted_a > 0 for e in found)
    assert any(e.recovered_ab > 0 for e in found)


def chosen_seed(mask, near, reach, units=(1.0, 1.0, 1.0)):
    return best_seed(measured_side(mask, near, reach, units, Box.from_shape(mask.shape)).merit, reach)


def test_the_seed_lies_deep_inside_its_side_and_near_the_contact():
    side = np.zeros((9, 9, 40), bool)
    side[1:8, 1:8, :] = True
    reach = Box((2, 2, 3), (7, 7, 37))
    assert chosen_seed(side, (4, 4, 20), reach) == (4, 4, 20)
    assert chosen_seed(side, (4, 4, 39), reach) == (4, 4, 36)
    assert chosen_seed(np.zeros_like(side), (4, 4, 20), reach) is None
    assert chosen_seed(side, (4, 4, 20), Box((2, 2, 3), (2, 7, 37))) is None


CONFIG = Agglomeration()
A, B = np.zeros((2, 4, 6, 10), bool)
A[1:3, 1:5, :5] = B[1:3, 1:5, 5:] = True


def evidence(*objects, num_deleted=(0, 0)):
    """What `compare` makes of objects that have grown from the halves."""
    grown = [Grown(mask, 5, 1, lost) for mask, lost in zip(objects, num_deleted, strict=True)]
    return compare([Side(A, 1.5, A), Side(B, 2.0, B)], grown, Box.from_shape(A.shape))


def test_two_halves_of_one_object_agree_and_two_objects_do_not():
    found = evidence(A | B, A | B)
    assert (found.voxels_a, found.voxels_b, found.radius_a, found.radius_b) == (40, 40, 1.5, 2.0)
    assert (found.tries_a, found.fovs_a, found.tries_b, found.fovs_b) == (1, 5, 1, 5)
    assert (found.recovered_aa, found.recovered_ab, found.recovered_ba, found.recovered_bb) == (1, 1, 1, 1)
    assert (found.agreement, found.iou, found.deleted_a, found.deleted_b, found.lost) == (1, 1, 0, 0, 0)
    assert found.score(CONFIG) == 1.0
    found = evidence(A, B)
    assert (found.recovered_ab, found.recovered_ba, found.agreement) == (0, 0, 0)
    assert found.score(CONFIG) == 0.0


def test_the_score_falls_with_the_share_of_an_object_that_is_entered():
    for objects in ((A | B, B), (A, A | B)):
        found = evidence(*objects)
        assert found.agreement == 1 and found.iou == 0.5
        assert found.score(CONFIG) == ONE_SIDED < 1
        assert found.score(CONFIG.model_copy(update={"min_crossing": 0})) == 1.0
    # Of what the other side recovers of itself: a right pair of FIB-25 entered each other by 0.23 and 0.27.
    found = replace(evidence(A | B, A | B), recovered_ab=0.23, recovered_ba=0.27)
    assert found.score(CONFIG) == pytest.approx(0.27 / 0.3 * (0.6 + 0.4 * 0.23 / 0.3))
    assert replace(found, recovered_aa=0.8, recovered_bb=0.7).score(CONFIG) == 1
    assert 0 < replace(found, recovered_ab=0.0, recovered_ba=0.1).score(CONFIG) < 0.3


def test_an_object_that_left_its_segment_or_lost_much_of_itself_is_no_evidence():
    found = evidence(B, A | B)
    assert found.recovered_aa == 0 and found.agreement == 1
    assert math.isnan(found.score(CONFIG))
    assert found.score(CONFIG.model_copy(update={"min_recovered": 0})) == ONE_SIDED
    found = evidence(A | B, A | B, num_deleted=(0, 8))
    assert (found.deleted_a, found.deleted_b) == (0, 0.1)
    assert found.score(CONFIG) == 1.0
    assert math.isnan(found.score(CONFIG.model_copy(update={"max_deleted": 0.09})))


def test_agreement_counts_the_smaller_object():
    small = A & (np.arange(10) >= 2)
    found = evidence(small, B | small)
    assert found.agreement == 1.0 and found.iou == pytest.approx(24 / 64)
    assert found.recovered_ba == pytest.approx(0.6) and found.lost == pytest.approx(16 / 80)
