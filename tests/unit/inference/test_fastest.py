"""The engine and precision that auto takes, on machines with other CPUs and GPUs than this one."""

import pytest
import yaml

from ffn import kernels
from ffn.config import FloodConfig, ModelConfig
from ffn.inference import inputs
from ffn.inference.inputs import chosen
from ffn.model import choice
from ffn.model.store import Model
from ffn.training.plan import initial_weights

CONFIG = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))
MODEL = Model(CONFIG, initial_weights(CONFIG, 1), {})
OLD, AVX2, AVX512 = "sse2", "avx2 fma", "avx2 fma avx512f"
BF16_ALONE, AMX = f"{AVX512} avx512_bf16", f"{AVX512} avx512_bf16 amx_bf16"
WIDE = Model(CONFIG.model_copy(update={"features": 32}), {}, {})


@pytest.fixture
def on(monkeypatch):
    """Function that makes this machine another one."""

    def become(flags, gpu=False, installed=True, built=False, jax_gpu=False):
        for module in (choice, inputs, kernels):
            monkeypatch.setattr(module, "cpu_flags", lambda: frozenset(flags.split()))
        monkeypatch.setattr(inputs, "obstacle", lambda features: None if built else "they are missing")
        monkeypatch.setattr(choice, "gpu_visible", lambda: gpu)
        monkeypatch.setattr(choice, "jax_gpus", lambda: ["a GPU"] if jax_gpu else [])
        monkeypatch.setattr(choice, "_gpus_tell", lambda engine, half: (half, "the GPU has compute capability 8.0"))
        monkeypatch.setattr(inputs.importlib.util, "find_spec", lambda name: object() if installed else None)

    return become


def taken(model, config, machine=None):
    """Return engine and precision that `chosen` takes."""
    found = chosen(model, config, machine)
    return f"{found.engine} {found.precision}"


@pytest.mark.parametrize(
    ("machine", "options", "expected"),
    [
        ({"flags": AVX2, "built": False}, {}, "openvino float32"),
        ({"flags": AMX, "built": False}, {}, "openvino bfloat16"),
        ({"flags": BF16_ALONE, "built": False}, {}, "openvino float32"),
        ({"flags": AVX2, "gpu": True, "jax_gpu": True}, {}, "jax float16"),
        ({"flags": AMX, "jax_gpu": True}, {}, "jax float16"),
        ({"flags": AVX2, "installed": False, "built": False}, {}, "jax float32"),
        ({"flags": AVX2}, {}, "kernels float32"),
        ({"flags": AVX2, "installed": False}, {}, "kernels float32"),
        ({"flags": AMX, "installed": False}, {}, "kernels float32"),
        ({"flags": AVX2}, {"precision": "float32"}, "kernels float32"),
        ({"flags": AVX2}, {"precision": "bfloat16"}, "openvino bfloat16"),
        ({"flags": AVX2}, {"engine": "openvino"}, "openvino float32"),
        ({"flags": AVX2}, {"precision": "float16"}, "jax float16"),  # which no other engine has
        ({"flags": OLD}, {}, "openvino float32"),
        ({"flags": OLD}, {"engine": "kernels"}, "kernels float32"),
        ({"flags": AVX512}, {}, "kernels float32"),
        ({"flags": BF16_ALONE}, {}, "kernels float32"),
        ({"flags": AMX}, {}, "openvino bfloat16"),
        ({"flags": AMX}, {"precision": "float32"}, "kernels float32"),
    ],
)
def test_auto_takes_what_is_fastest(on, machine, options, expected):
    on(**{"built": True, **machine})
    assert taken(WIDE, FloodConfig(**options)) == expected


def test_jobs_of_a_run_take_the_same_on_any_machine(on, tmp_path):
    on(AMX)
    first = taken(MODEL, FloodConfig(), str(tmp_path))
    (file,) = tmp_path.iterdir()
    assert yaml.safe_load(file.read_text())["reason"].endswith("CPU has AMX")
    for flags, gpu in ((AVX2, False), (AMX, True)):
        on(flags, gpu)
        assert taken(MODEL, FloodConfig(), str(tmp_path)) == first == "openvino bfloat16"
