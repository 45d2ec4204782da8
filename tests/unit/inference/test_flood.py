"""Flood filling with a network whose answer is known: the object is what is bright and connected to the centre."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import ndimage

from ffn.config import ModelConfig, SegmentConfig, flooding_model
from ffn.errors import ConfigError
from ffn.inference import segment
from ffn.inference.canvas import MASKED, Canvas, Thresholds
from ffn.inference.flood import FloodFill
from ffn.inference.lanes import advance

MODEL = ModelConfig(fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3))
CONFIG = SegmentConfig(min_segment_um3=2e-05)


class Connected:
    """Engine whose object is the bright component of the central voxel, with the POM highest where it is brightest."""

    def predict(self, image, pom_logit):
        assert image.shape == pom_logit.shape == (1, 5, 7, 9)
        components, _ = ndimage.label(image[0] > 0)
        inside = (components > 0) & (components == components[2, 3, 4])
        return np.where(inside, 3 + image[0], np.float32(-4))[None]


class Blurred:
    """Engine whose answer depends on image and POM, so that the result depends on the order of FOVs."""

    def __init__(self):
        self.num_fovs = 0

    def predict(self, image, pom_logit):
        assert image.shape == pom_logit.shape == (len(image), 5, 7, 9)
        self.num_fovs += len(image)
        blurred = [ndimage.uniform_filter(p, 3, mode="nearest") for p in pom_logit]
        return np.clip(pom_logit / 2 + np.stack(blurred) / 2 + 2 * image, -6, 6).astype(np.float32)


def blobs(rng):
    """Return a smooth random image in which objects meet and weaken, and more seeds than objects."""
    image = ndimage.gaussian_filter(rng.normal(size=(24, 30, 40)), 2)
    image = (image / image.std() + rng.uniform(0, 0.5)).astype(np.float32)
    seeds = np.argwhere((ndimage.maximum_filter(image, 3) == image) | (rng.random(image.shape) < 0.003))
    return image, seeds


def flood_of(image, config, masked=None, network=MODEL):
    segmentation = np.zeros(image.shape, np.int32)
    if masked is not None:
        segmentation[masked] = MASKED
    return FloodFill(Canvas(image, network, Thresholds.of(config), segmentation), config)


def started(image, seeds, masked=None, **options):
    flood = flood_of(image, SegmentConfig(**{"min_segment_um3": 3e-05, **options}), masked)
    flood.begin(seeds)
    return flood


def run(flood, engine, after_fov=lambda: None):
    """Decide all seeds of a pass."""
    while (grower := flood.growing()) is not None:
        advance(engine, [grower])
        after_fov()


def same(one, other):
    assert (one.segmentation == other.segmentation).all() and (one.probability == other.probability).all()
    assert (one.origins, one.counters) == (other.origins, other.counters)


def two_tubes():
    """Two neurites along x, one voxel apart, brightest in the middle, and a speck."""
    image = np.full((14, 20, 40), -1, np.float32)
    for y in (3, 10):
        for depth in range(3):
            image[4 + depth : 10 - depth, y + depth : y + 6 - depth, :] = 1 + depth
    image[11, 17, 20] = 1
    return image


def fill(image, seeds, config=CONFIG):
    flood = flood_of(image, config)
    flood.begin(seeds)
    run(flood, Connected())
    return flood


def test_each_seed_fills_its_tube_once_and_no_other():
    image = two_tubes()
    filling = fill(image, [(6, 6, 5), (6, 6, 30), (6, 12, 20)])
    assert [origin.segment_id for origin in filling.origins] == [1, 2]
    first, second = (filling.segmentation == i for i in (1, 2))
    assert first[4:10, 3:9, 4:36].all() and not first[:, 9:].any()
    assert second[4:10, 10:16, 4:36].all() and not second[:, :10].any()
    assert filling.counters["taken"] == 1
    assert (filling.probability > 0).tolist() == (filling.segmentation > 0).tolist()
    assert filling.origins[0].num_fovs + filling.origins[1].num_fovs == filling.counters["fovs"]


def test_seeds_in_a_segment_are_settled_before_their_turn():
    flood, settled = started(two_tubes(), [(6, 6, 5), (6, 12, 20), (6, 6, 30)]), set()
    run(flood, Connected(), lambda: settled.add(flood.settled_and_known))
    assert (settled, flood.settled_and_known) == ({(0, 3), (2, 3)}, (3, 3))
    flood.begin(np.array([(6, 12, 20), (0, 0, 0)]))
    assert flood.settled_and_known == (4, 5)  # a second pass goes on from the first


def test_the_time_left_is_that_of_all_subvolumes():
    """Those that have not begun count as those that have."""
    done, active = (
        SimpleNamespace(flood=SimpleNamespace(counters={"seeds": n}, settled_and_known=(5, n))) for n in (10, 20)
    )
    progress = segment._Progress(4)
    progress.finish(done)
    progress.show(1, [active])
    assert (progress._bar.n, progress._bar.total) == (15, 60)
    for job in (active, done, done):
        progress.finish(job)
    progress.show(0, [])  # at the end, however soon
    assert (progress._bar.n, progress._bar.total) == (50, 50)
    progress.close()


def test_the_time_left_goes_by_all_seeds_that_took_time(monkeypatch):
    """When a large object has grown, hundreds settle within one update."""
    clock, flood = SimpleNamespace(now=0.0), SimpleNamespace()
    monkeypatch.setattr(segment, "time", SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: 0.0))
    progress = segment._Progress(1)
    progress._bar.start_t, progress._bar._time = 0.0, lambda: clock.now
    for clock.now, settled in ((1, 20), (80, 20), (100, 60), (120, 60)):
        flood.settled_and_known = settled, 100
        progress.show(1, [SimpleNamespace(flood=flood)])
    assert "[02:00<02:00" in str(progress._bar)
    progress.close()


def test_deltas_have_to_fit_the_fov():
    given = SegmentConfig(effort="fast", deltas_zyx=(1, 2, 2))
    assert flooding_model(MODEL, given).deltas_zyx == (1, 2, 2)  # what is given counts
    flat = ModelConfig(fov_size_zyx=(1, 33, 33), deltas_zyx=(0, 8, 8))
    assert flooding_model(flat, SegmentConfig(effort="fast")).deltas_zyx == (0, 12, 12)
    with pytest.raises(ConfigError, match="segment.deltas_zyx: 4 .*y"):
        flooding_model(MODEL, SegmentConfig(deltas_zyx=(1, 4, 2)))


OPTIONS = [
    {},
    {"disco_seed_threshold": 0.2, "segment_threshold": 0.1},
    {"disco_seed_threshold": -1, "min_segment_um3": 0.0004, "max_fovs": 200},
    {"max_fovs": 9, "min_boundary_dist_zyx": (2, 1, 0)},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_floods_that_advance_together_are_those_of_one_after_another(options):
    scenes = [blobs(np.random.default_rng(rng_seed)) for rng_seed in range(3)]
    together = [started(*scene, **options) for scene in scenes]
    engine = Blurred()
    while growing := [grower for flood in together if (grower := flood.growing())]:
        assert advance(engine, growing) == len(growing)
    for flood, scene in zip(together, scenes, strict=True):
        alone = started(*scene, **options)
        run(alone, Blurred())
        same(flood, alone)
    assert engine.num_fovs == sum(flood.counters["fovs"] for flood in together)  # none is computed twice


def test_a_saved_state_resumes_to_the_same_end():
    image, seeds = blobs(np.random.default_rng(0))
    options = {"disco_seed_threshold": 0.3, "max_fovs": 60}
    masked = np.indices(image.shape).sum(axis=0) > 65
    whole, states = started(image, seeds, masked, **options), []
    run(whole, Blurred(), lambda: states.append({name: np.array(array) for name, array in whole.state().items()}))
    states.append(whole.state())
    assert any("growing/queue" in state for state in states) and "growing/queue" not in states[-1]
    for state in [*states[3::13], states[-1]]:
        resumed = flood_of(image, SegmentConfig(min_segment_um3=3e-05, **options))
        resumed.resume(state)
        run(resumed, Blurred())
        same(resumed, whole)
        assert (resumed.segmentation == whole.segmentation).all()


def test_an_object_at_a_limit_keeps_what_has_grown():
    whole = fill(two_tubes(), [(6, 6, 5)])
    few = fill(two_tubes(), [(6, 6, 5)], SegmentConfig(min_segment_um3=2e-05, max_fovs=4))
    exact = SegmentConfig(min_segment_um3=2e-05, max_fovs=whole.counters["fovs"])
    assert few.counters["limited"] == 1 and few.counters["fovs"] == 4
    assert 20 <= np.count_nonzero(few.segmentation) < np.count_nonzero(whole.segmentation)
    assert fill(two_tubes(), [(6, 6, 5)], exact).counters["limited"] == whole.counters["limited"] == 0


def test_a_second_pass_has_its_own_size_limit_and_retries_rejected_seeds(monkeypatch):
    monkeypatch.setattr("ffn.inference.flood.SECOND_MIN_SEGMENT_UM3", 10e-6)
    image = two_tubes()
    image[11:13, 16:19, 18:23] = 1
    flood = flood_of(image, SegmentConfig(min_segment_um3=0.0002))
    for seeds in ([(11, 16, 20), (6, 6, 5)], [(11, 16, 20)]):
        flood.begin(seeds)
        run(flood, Connected())
    origins = flood.origins
    assert flood.counters["too_small"] == 1
    assert [(o.seed_zyx, o.pass_number) for o in origins] == [((6, 6, 5), 1), ((11, 16, 20), 2)]
