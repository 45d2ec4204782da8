import pytest

from ffn.config import ModelConfig
from ffn.model import choice as record
from ffn.model import choice as rules
from ffn.training import choice
from ffn.training.config import TrainConfig

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))


@pytest.fixture
def on(monkeypatch):
    """Function that makes this machine another one."""

    def become(flags, gpu=False, jax_gpu=False):
        monkeypatch.setattr(rules, "cpu_flags", lambda: frozenset(flags.split()))
        monkeypatch.setattr(rules, "_gpus_tell", lambda engine, half: (half, f"{engine} sees compute capability 8.0"))
        monkeypatch.setattr(record, "gpu_visible", lambda: gpu)
        monkeypatch.setattr(record, "jax_gpus", lambda: ["GPU"] * jax_gpu)

    return become


@pytest.mark.parametrize(
    ("flags", "gpu", "expected"),
    [("avx2", False, "float32"), ("amx_bf16", False, "bfloat16"), ("avx2", True, "bfloat16")],
)
def test_auto_takes_what_is_fastest_and_a_training_keeps_it_anywhere(on, tmp_path, flags, gpu, expected):
    on(flags, gpu)
    assert choice.chosen_engine(TrainConfig(), MODEL, tmp_path / "machine").precision == expected
    on("avx2" if expected == "bfloat16" else "amx_bf16", gpu)
    assert choice.chosen_engine(TrainConfig(), MODEL, tmp_path / "machine").precision == expected


def test_an_option_is_kept(on, tmp_path):
    on("amx_bf16", gpu=True)
    for options in ({"precision": "float32"}, {"precision": "float32", "engine": "jax"}):
        found = choice.chosen_engine(TrainConfig(**options), MODEL, tmp_path / "machine")
        assert (found.engine, found.precision) == (options.get("engine", "tensorflow"), "float32")
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize(
    ("tensorflow", "jax", "expected"),
    [
        (False, False, ("tensorflow", "float32", "no GPU is visible, and the CPU has no AMX")),
        (True, True, ("tensorflow", "bfloat16", "TensorFlow sees a GPU, and tensorflow sees compute capability 8.0")),
        (False, True, ("jax", "bfloat16", "JAX alone sees a GPU, and jax sees compute capability 8.0")),
    ],
)
def test_auto_takes_jax_only_on_gpus_that_tensorflow_does_not_see(on, tmp_path, tensorflow, jax, expected):
    on("avx2", tensorflow, jax)
    found = choice.chosen_engine(TrainConfig(), MODEL, tmp_path)
    assert (found.engine, found.precision, found.reason) == expected and found.gpu == (tensorflow or jax)
    assert choice.chosen_engine(TrainConfig(precision="float32"), MODEL, tmp_path).engine == expected[0]
