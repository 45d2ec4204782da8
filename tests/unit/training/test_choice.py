import pytest

from ffn.config import ModelConfig
from ffn.model import choice as record
from ffn.model import choice as rules
from ffn.training.config import TrainConfig
from ffn.training.train import chosen_engine

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))


@pytest.fixture
def on(monkeypatch):
    """Function that makes this machine another one."""

    def become(flags, gpu=False, jax_gpu=False):
        monkeypatch.setattr(rules, "cpu_flags", lambda: frozenset(flags.split()))
        monkeypatch.setattr(rules, "_gpus_tell", lambda engine, half: (half, f"{engine} sees capability 8.0"))
        monkeypatch.setattr(record, "gpu_visible", lambda: gpu)
        monkeypatch.setattr(record, "jax_gpus", lambda: ["GPU"] * jax_gpu)

    return become


def test_an_option_is_kept(on, tmp_path):
    on("amx_bf16", gpu=True)
    for options in ({"precision": "float32"}, {"precision": "float32", "engine": "jax"}):
        found = chosen_engine(TrainConfig(**options), MODEL, tmp_path / "machine")
        assert (found.engine, found.precision) == (options.get("engine", "tensorflow"), "float32")
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize(
    ("flags", "tensorflow", "jax", "expected"),
    [
        ("amx_bf16", False, False, ("tensorflow", "bfloat16", "no GPU is visible, and the CPU has AMX")),
        ("avx2", False, False, ("tensorflow", "float32", "no GPU is visible, and the CPU has no AMX")),
        ("avx2", True, True, ("tensorflow", "bfloat16", "TensorFlow sees a GPU, and tensorflow sees capability 8.0")),
        ("avx2", False, True, ("jax", "bfloat16", "JAX alone sees a GPU, and jax sees capability 8.0")),
    ],
)
def test_auto_takes_what_is_fastest_and_jax_only_on_gpus_that_tensorflow_does_not_see(
    on, tmp_path, flags, tensorflow, jax, expected
):
    on(flags, tensorflow, jax)
    found = chosen_engine(TrainConfig(), MODEL, tmp_path)
    assert (found.engine, found.precision, found.reason) == expected and found.gpu == (tensorflow or jax)
    on("avx2" if flags == "amx_bf16" else "amx_bf16", tensorflow, jax)  # a training keeps it anywhere
    assert chosen_engine(TrainConfig(), MODEL, tmp_path) == found
    assert chosen_engine(TrainConfig(precision="float32"), MODEL, tmp_path).engine == expected[0]
