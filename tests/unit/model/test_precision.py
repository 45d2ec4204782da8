from types import SimpleNamespace

import pytest

from ffn.model import precision


def never():
    raise AssertionError("measured although the device tells")


@pytest.mark.parametrize(
    ("flags", "chosen", "reason"),
    [
        ("avx2", "float32", "the CPU has neither AMX nor AVX512-BF16"),
        ("avx2 avx512f", "float32", "the CPU has neither AMX nor AVX512-BF16"),
        ("avx2 avx512f avx512_bf16 amx_bf16", "bfloat16", "the CPU has AMX"),
    ],
)
def test_what_the_cpu_tells_is_not_measured(monkeypatch, flags, chosen, reason):
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags.split()))
    assert precision.fastest_precision(False, never) == (chosen, reason)


@pytest.mark.parametrize(("bfloat16", "chosen"), [(3.8, "float32"), (7.0, "float32"), (7.5, "bfloat16")])
def test_with_avx512_bf16_alone_the_faster_one_is_measured(monkeypatch, bfloat16, chosen):
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset({"avx512f", "avx512_bf16"}))
    found = precision.fastest_precision(False, lambda: {"float32": 6.9, "bfloat16": bfloat16})
    assert found == (chosen, f"measured float32: 6.9 FOVs/s, bfloat16: {bfloat16} FOVs/s")


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [([(8, 0)], "bfloat16"), ([(9, 0), (7, 5)], "float32"), ([None], "float32")]
)
def test_the_oldest_gpu_decides(monkeypatch, capabilities, chosen):
    import tensorflow as tf

    def details(gpu):
        return {} if gpu is None else {"compute_capability": gpu}

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: capabilities)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
    assert precision.fastest_precision(True, never)[0] == chosen


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [(["9.0"], "bfloat16"), (["12.0", "7.5"], "float32"), (["gfx942"], "float32")]
)
def test_the_oldest_gpu_that_jax_sees_decides(monkeypatch, capabilities, chosen):
    gpus = [SimpleNamespace(compute_capability=text) for text in capabilities]
    monkeypatch.setattr(precision, "jax_gpus", lambda: gpus)
    assert precision.fastest_precision(True, never, "jax")[0] == chosen
