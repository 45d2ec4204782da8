"""Canvases on the device: the same bytes as one canvas after another on the host, in float32 on a CPU."""

import os
import subprocess
import sys
import textwrap
from collections import Counter

import numpy as np
import pytest
from scipy import ndimage

from ffn.config import ModelConfig, SegmentConfig
from ffn.geometry import Box
from ffn.inference import lanes as inference_lanes
from ffn.inference.canvas import MASKED, Frame, Thresholds
from ffn.inference.device import burst
from ffn.inference.device import lanes as device
from ffn.inference.device.lanes import DeviceLanes
from ffn.inference.flood import FloodFill
from ffn.inference.inputs import Network
from ffn.inference.lanes import HostLanes
from ffn.model.choice import Choice
from ffn.model.normalize import Normalisation

from ...networks import JaxOnHost, follower

jax = pytest.importorskip("jax")

CONFIG = ModelConfig(
    depth=2, features=4, fov_size_zyx=(5, 7, 9), deltas_zyx=(1, 2, 3), image_mean=120.5, image_stddev=31.7
)
SHAPES = [(19, 20, 29), (16, 22, 24), (18, 18, 26)]
OPTIONS = {"min_segment_um3": 3e-05, "disco_seed_threshold": 0.3, "max_fovs": 30}


@pytest.fixture(autouse=True)
def _engine(monkeypatch):
    monkeypatch.setattr(inference_lanes, "create_engine", JaxOnHost)


@pytest.fixture(scope="module")
def model():
    return follower(CONFIG)


def subvolume(shape, rng_seed):
    """Return an image in which objects meet and weaken, a mask, more seeds than objects, and what is not mirrored."""
    rng = np.random.default_rng(rng_seed)
    image = ndimage.gaussian_filter(rng.normal(size=shape), 2)
    raw = np.clip(128 + 40 * image / image.std(), 0, 255).astype(np.uint8)
    masked = np.where(np.indices(shape).sum(axis=0) > sum(shape) - 14, MASKED, 0).astype(np.int32)
    seeds = np.argwhere((ndimage.maximum_filter(raw, 5) == raw) | (rng.random(shape) < 0.001))
    box = Box((2, 0, 0), (shape[0], shape[1] - 3, shape[2]))
    frame = Frame(box, box, Box.from_shape(shape))
    raw, masked = frame.mirrored(raw[frame.inside.slices()]), frame.masked(masked[frame.inside.slices()])
    return raw, masked, seeds, frame.inside


REFUSED = [Box((0, 0, 0), (99, 9, 9)), Box((7, 0, 0), (8, 9, 99))]  # where no FOV may be centred


def floods(lanes, config, subvolumes):
    """Start a flood on each canvas."""
    started = []
    for lane, (raw, masked, seeds, inside) in enumerate(subvolumes):
        canvas = lanes.canvas(lane, raw, masked.copy(), inside)
        canvas.refuse(REFUSED)
        started.append(FloodFill(canvas, config))
        started[-1].begin(seeds)
    return started


def run_together(lanes, started):
    """Flood all; return the number of canvases at work in each step, and the number of FOVs."""
    busy, num_fovs = [], 0
    while growing := [grower for flood in started if (grower := flood.growing())]:
        busy.append(len(growing))
        num_fovs += lanes.advance(growing)
    return busy, num_fovs


def network(model, precision="float32", normalisation=None):
    return Network(model, normalisation or Normalisation.of_model(CONFIG), Choice("jax", precision), CONFIG.deltas_zyx)


def device_lanes(network, config, size, dtype=np.uint8):
    shape = tuple(np.max(SHAPES, axis=0).tolist())
    return DeviceLanes(network, Thresholds.of(config), size, shape, np.dtype(dtype))


def same(one, other, most_off=0):
    assert one.segmentation.tobytes() == other.segmentation.tobytes()
    assert np.abs(one.probability.astype(int) - other.probability).max() <= most_off
    assert (one.origins, one.counters) == (other.origins, other.counters)


SHORT = {"FOVS_OF_BURST": {"cpu": 3, "gpu": 3}, "QUEUE": 128, "LOOKAHEAD": 3, "IDLE_FOVS": 9}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "options", "changed"),
    [
        pytest.param(3, {}, {}, id="as it is"),
        pytest.param(2, {"disco_seed_threshold": -1.0, "move_threshold": 0.8, "max_fovs": 60}, SHORT, id="short"),
    ],
)
def test_unequal_subvolumes_together_are_those_of_one_after_another_on_the_host(
    model, number, options, changed, jax_device, monkeypatch
):
    """On a GPU, float32 takes the same decisions; of the probabilities in 255 steps, some may be rounded otherwise."""
    monkeypatch.setattr(device, "jax_device", lambda: jax_device)
    for name, value in changed.items():
        monkeypatch.setattr(burst if hasattr(burst, name) else device, name, value)
    config = SegmentConfig(**{**OPTIONS, **options})
    subvolumes = [subvolume(shape, rng_seed) for rng_seed, shape in enumerate(SHAPES[:number])]
    lanes = device_lanes(network(model), config, number + number % 2)  # three at once are computed as four
    together = floods(lanes, config, subvolumes)
    busy, num_fovs = run_together(lanes, together)
    assert lanes._growing.pom_logit.devices() == {jax_device}
    assert max(busy) == number and min(busy) == 1
    assert (lanes._growing.queue.shape[1] > device.QUEUE) == bool(changed)
    totals = Counter()
    for flood, scene in zip(together, subvolumes, strict=True):
        host = HostLanes(network(model), config)
        (alone,) = floods(host, config, [scene])
        run_together(host, [alone])
        same(flood, alone, most_off=int(jax_device.platform == "gpu"))
        assert flood._canvas.num_deleted == alone._canvas.num_deleted
        totals.update(alone.counters)
    assert totals["segments"] > 1 and totals["limited"] > 0
    assert totals["fovs"] == num_fovs


def test_a_saved_flood_resumes_on_another_canvas_and_on_the_host(model):
    config = SegmentConfig(**OPTIONS)
    subvolumes = [subvolume(shape, number) for number, shape in enumerate(SHAPES[:2])]
    lanes = device_lanes(network(model), config, 4)
    together, states = floods(lanes, config, subvolumes), []
    while growing := [grower for flood in together if (grower := flood.growing())]:
        lanes.advance(growing)
        states.append([{name: np.array(array) for name, array in flood.state().items()} for flood in together])
    saved = next(state for state in states[len(states) // 3 :] if "growing/queue" in state[0])
    for other in (device_lanes(network(model), config, 4), HostLanes(network(model), config)):
        resumed = []
        for lane, ((raw, masked, _, inside), state) in enumerate(zip(subvolumes, saved, strict=True)):
            canvas = other.canvas(3 - lane, raw, masked.copy(), inside)
            canvas.refuse(REFUSED)
            resumed.append(FloodFill(canvas, config))
            resumed[-1].resume(state)
        run_together(other, resumed)
        for one, whole in zip(resumed, together, strict=True):
            same(one, whole)


@pytest.mark.parametrize("dtype", [pytest.param(np.uint16, marks=pytest.mark.slow), np.float32])
def test_the_network_sees_any_image_as_on_the_host(model, dtype):
    curve = (np.array([0.0, 100.0, 255.0]), np.array([20.0, 110.0, 230.0]))
    matched, config = network(model, normalisation=Normalisation(120.5, 31.7, curve)), SegmentConfig(**OPTIONS)
    raw, *rest = subvolume(SHAPES[0], 0)
    results = []
    for lanes in (device_lanes(matched, config, 1, dtype), HostLanes(matched, config)):
        (flood,) = floods(lanes, config, [(raw.astype(dtype), *rest)])
        run_together(lanes, [flood])
        results.append(flood)
    same(*results)
    assert results[0].counters["segments"] > 0


SECOND_DEVICE = textwrap.dedent(
    """
    import jax, numpy as np
    from tests.unit.inference.device import test_lanes as here

    first, second = jax.devices()
    here.device.jax_device = lambda: second
    here.DeviceLanes._compile = lambda *_: None
    lanes = here.device_lanes(here.network(here.follower(here.CONFIG)), here.SegmentConfig(), 2)
    canvas = lanes.canvas(1, np.ones((16, 22, 24), np.uint8), np.zeros((16, 22, 24), np.int32))
    canvas.start((8, 11, 12))
    assert canvas.visited_pom()[1] > 0
    assert all(array.devices() == {second} for array in [*lanes._scenes, *lanes._growing])
    """
)


@pytest.mark.slow
def test_canvases_stay_on_the_device_of_the_process():
    """Those of four jobs on four GPUs would all meet on the first."""
    variables = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    subprocess.run([sys.executable, "-c", SECOND_DEVICE], check=True, env=variables)
