import pytest

from ffn.config import ModelConfig
from ffn.model import choice as record
from ffn.model import precision as rules
from ffn.training import precision
from ffn.training.config import TrainConfig

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3))


@pytest.fixture
def on(monkeypatch):
    """Function that makes this machine another one."""

    def become(flags, gpu=False):
        monkeypatch.setattr(rules, "cpu_flags", lambda: frozenset(flags.split()))
        monkeypatch.setattr(rules, "_gpus_tell", lambda: ("bfloat16", "the GPU has compute capability 8.0"))
        for module in (precision, record):
            monkeypatch.setattr(module, "gpu_visible", lambda: gpu)

    return become


def test_auto_is_the_default():
    assert TrainConfig().precision == "auto"


@pytest.mark.parametrize(
    ("flags", "gpu", "expected"),
    [("avx2", False, "float32"), ("amx_bf16", False, "bfloat16"), ("avx2", True, "bfloat16")],
)
def test_auto_takes_what_is_fastest_and_a_training_keeps_it_anywhere(on, tmp_path, flags, gpu, expected):
    on(flags, gpu)
    assert precision.chosen_precision(TrainConfig(), MODEL, tmp_path / "machine") == expected
    on("avx2" if expected == "bfloat16" else "amx_bf16", gpu)
    assert precision.chosen_precision(TrainConfig(), MODEL, tmp_path / "machine") == expected


def test_another_network_gets_another_choice(on, tmp_path):
    on("avx2")
    precision.chosen_precision(TrainConfig(), MODEL, tmp_path)
    on("amx_bf16")
    assert precision.chosen_precision(TrainConfig(), MODEL.model_copy(update={"depth": 3}), tmp_path) == "bfloat16"


def test_an_option_is_kept(on, tmp_path):
    on("amx_bf16")
    assert precision.chosen_precision(TrainConfig(precision="float32"), MODEL, tmp_path / "machine") == "float32"
    assert not (tmp_path / "machine").exists()


def test_measuring_trains_in_both_precisions(monkeypatch):
    """Also with options that need other processes."""
    monkeypatch.setattr(
        precision, "calls_per_second", lambda steps: {name: step().pom_logit.shape[0] for name, step in steps.items()}
    )
    train = TrainConfig(num_workers=4, virtual_workers=3, batch_size=2, compression="1-bit")
    assert precision.fovs_per_second(train, MODEL) == {"float32": 4, "bfloat16": 4}
