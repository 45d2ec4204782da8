"""How many canvases a device holds is known before anything is put there."""

from types import SimpleNamespace

import numpy as np
import pytest

from ffn.config import ModelConfig, SegmentConfig
from ffn.errors import ConfigError
from ffn.inference import lanes
from ffn.inference.device.memory import MOST_CANVASES, USABLE, bytes_of_canvas, free_bytes, num_canvases
from ffn.inference.inputs import Network
from ffn.model.choice import Choice
from ffn.model.store import Model

MODEL = ModelConfig(features=32, fov_size_zyx=(33, 33, 33), deltas_zyx=(8, 8, 8))
SHAPE, DTYPE = (200, 256, 300), np.dtype(np.uint16)
EACH = bytes_of_canvas(MODEL, SHAPE, DTYPE)


def canvases(wanted, num_jobs, fitting):
    free = int((fitting + 0.5) * EACH / USABLE)
    return num_canvases(wanted, num_jobs, SHAPE, EACH, free)


@pytest.mark.parametrize(
    ("wanted", "num_jobs", "fitting", "expected"),
    [(None, 1000, 5, 5), (None, 3, 5, 3), (None, 1000, 500, MOST_CANVASES), (100, 1000, 500, 100), (100, 7, 8, 7)],
)
def test_auto_takes_what_the_memory_holds(wanted, num_jobs, fitting, expected):
    assert canvases(wanted, num_jobs, fitting) == expected


def test_too_many_and_too_large_are_one_line_each():
    with pytest.raises(ConfigError, match="canvases: 9 "):
        canvases(9, 100, 5)
    with pytest.raises(ConfigError, match="canvases: 1 "):
        canvases(None, 100, 0)


def test_the_memory_of_the_host_counts_where_the_device_has_its_own():
    plenty = 100 * EACH
    assert num_canvases(None, 1000, SHAPE, EACH, plenty, on_host=7) == 7
    assert num_canvases(None, 1000, SHAPE, EACH, plenty, on_host=0) == 1, "one at a time, as without a GPU"
    with pytest.raises(ConfigError, match="canvases: 9 "):
        num_canvases(9, 1000, SHAPE, EACH, plenty, on_host=7)


def test_a_gpu_gets_no_more_canvases_than_the_machine_has_memory_for(monkeypatch):
    """128³ voxels: 8 that are searched for seeds take 0.4 GB, a canvas 31 MB."""
    pytest.importorskip("jax")
    sizes = []
    monkeypatch.setattr(lanes, "jax_device", lambda: SimpleNamespace(platform="gpu"))
    monkeypatch.setattr("ffn.inference.device.memory.free_bytes", lambda device: 10**12)
    monkeypatch.setattr("ffn.inference.device.lanes.DeviceLanes", lambda *given: sizes.append(given[2]))
    network = Network(Model(MODEL, {}, {}), None, Choice("jax", "float32"), MODEL.deltas_zyx)
    for megabytes in (1000, 3000, 64_000):
        monkeypatch.setattr(lanes, "memory_mb", lambda megabytes=megabytes: megabytes)
        lanes.open_lanes(network, SegmentConfig(), 1000, (128, 128, 128), DTYPE)
    assert sizes == [1, 4, MOST_CANVASES]


def test_a_canvas_has_the_image_as_stored_and_the_pom():
    more = bytes_of_canvas(MODEL, (*SHAPE[:2], SHAPE[2] + 1), DTYPE) - EACH
    assert more == SHAPE[0] * SHAPE[1] * (2 + 4)


def test_what_a_gpu_says_of_its_memory_counts():
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 80_000, "bytes_in_use": 5_000})
    assert free_bytes(gpu) == 75_000
    assert free_bytes(SimpleNamespace(platform="cpu")) > 10**8
