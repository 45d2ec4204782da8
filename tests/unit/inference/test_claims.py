from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import Box
from ffn.inference.canvas import MASKED, REJECTED, Canvas, Harvest, Thresholds
from ffn.inference.flood import FloodFill, ObjectGrower, origins_table, overlaps_table

SHAPE = (6, 8, 10)


def new_claims(*cells, **options):
    config = SegmentConfig(**{"min_boundary_dist_zyx": (0, 1, 2), **options})
    reach = Box.from_shape(SHAPE).grow((-1, -1, -1))
    canvas = SimpleNamespace(reach=reach, segmentation=np.zeros(SHAPE, np.int32), is_refused=lambda seed: False)
    return FloodFill(canvas, config, *cells)


def grown(box, seed=None, is_strong=True, limited=False, num_fovs=5):
    """An object that fills `box`."""
    canvas = SimpleNamespace(harvest=lambda least: Harvest(box, np.full(box.shape, 200, np.uint8), 0, 0))
    seed = seed or box.start
    return SimpleNamespace(canvas=canvas, seed_zyx=seed, num_fovs=num_fovs, is_strong=is_strong, limited=limited)


FIRST = Box((1, 2, 2), (4, 5, 6))
SECOND = Box((1, 2, 4), (4, 5, 9))
SHARED = FIRST.intersect(SECOND)


def settle_both(*cells):
    claims = new_claims(*cells)
    for number, found in enumerate((grown(FIRST), grown(SECOND, seed=(1, 2, 8))), 1):
        claims.pass_number = number
        claims.settle(found, min_voxels=1)
    return claims


def test_earlier_objects_keep_their_voxels_and_overlaps_are_counted_in_the_full_volume():
    claims = settle_both()
    assert (claims.segmentation[FIRST.slices()] == 1).all()
    assert np.count_nonzero(claims.segmentation == 2) == SECOND.num_voxels - 3 * 3 * 2
    assert ((claims.probability > 0) == (claims.segmentation > 0)).all()
    assert origins_table(claims.origins).tolist() == [[1, 1, 2, 2, 5, 1], [2, 1, 2, 8, 5, 2]]
    assert overlaps_table(claims.origins).tolist() == [[2, 1, 0, 0, 0, 3 * 3 * 2]]
    table = overlaps_table(settle_both((120.0, 60.0, 60.0), (101, 20, 30)).origins)
    shared = np.argwhere(np.ones(SHARED.shape)) + SHARED.start + (101, 20, 30)
    expected = Counter(map(tuple, (shared // (2, 4, 4) * (2, 4, 4)).tolist()))
    assert {tuple(place): n for _, _, *place, n in table.tolist()} == expected and len(expected) > 1


@pytest.mark.parametrize(
    ("seed", "objection"),
    [
        ((0, 4, 4), "outside"),
        ((4, 7, 4), "outside"),
        ((2, 3, 3), "taken"),
        ((3, 5, 5), "too_close"),
        ((3, 4, 7), "too_close"),
        ((3, 6, 5), None),
        ((3, 4, 8), None),
        ((4, 4, 5), None),
        ((1, 6, 8), "masked"),
    ],
)
def test_a_seed_starts_in_reach_free_and_away_from_segments(seed, objection):
    claims = new_claims()
    claims.segmentation[1, 6, 8] = MASKED
    claims.settle(grown(FIRST), min_voxels=1)
    assert claims.objection(seed) == objection


@pytest.mark.parametrize(
    ("is_strong", "min_voxels", "outcome"), [(True, 36, "segments"), (True, 37, "too_small"), (False, 1, "weak")]
)
def test_a_settled_object_has_one_outcome(is_strong, min_voxels, outcome):
    claims = new_claims()
    claims.settle(grown(FIRST, is_strong=is_strong, limited=True), min_voxels)
    counted = {name: count for name, count in claims.counters.items() if count}
    assert counted == {"seeds": 1, outcome: 1, "fovs": 5, "limited": 1}
    assert claims.segmentation[FIRST.start] == (1 if outcome == "segments" else REJECTED)


def test_a_seed_too_close_to_a_segment_is_rejected_until_the_next_pass():
    claims = new_claims()
    claims.refuse((3, 5, 5), "too_close")
    claims.refuse((0, 0, 0), "outside")
    assert np.argwhere(claims.segmentation == REJECTED).tolist() == [[3, 5, 5]]
    assert not (claims.segmentation > 0).any()
    claims.begin([])
    assert not claims.segmentation.any()


NETWORK = ModelConfig(fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))
SEED = (3, 4, 5)


@pytest.fixture
def grower():
    """An object of three voxels in a row, the seed first, after one FOV."""
    canvas = Canvas(np.zeros((7, 9, 30), np.float32), NETWORK, Thresholds.of(SegmentConfig()))
    grower = ObjectGrower(canvas, SEED)
    assert grower.next_position() == SEED
    update = np.full(NETWORK.fov_size_zyx, -4, np.float32)
    update[1, 2, 3:6] = 9
    grower.put(update)
    return grower


def test_a_harvested_object_has_its_voxels_without_the_canvas(grower):
    found = grower.canvas.harvest(3)
    assert grower.is_strong and not grower.limited and grower.num_fovs == 1
    assert found.box == Box((2, 2, 2), (5, 7, 9))
    assert (np.argwhere(found.probability > 0) + found.box.start).tolist() == [[3, 4, 5], [3, 4, 6], [3, 4, 7]]
    before = found.probability.copy()
    grower.canvas.start((3, 4, 20))
    assert np.array_equal(found.probability, before)
