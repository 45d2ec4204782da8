import logging

import pytest

from ffn.model import precision


@pytest.mark.parametrize(
    ("flags", "chosen", "reason"),
    [({"amx_bf16", "sse"}, "bfloat16", "the CPU has amx_bf16"), ({"sse"}, "float32", "the CPU has neither AMX")],
)
def test_auto_takes_bfloat16_if_the_cpu_has_it_and_logs_the_reason(monkeypatch, caplog, flags, chosen, reason):
    monkeypatch.setattr(precision, "cpu_flags", lambda: frozenset(flags))
    with caplog.at_level(logging.INFO):
        assert precision.resolve_precision("auto") == chosen
    assert f"precision auto: {chosen}, because {reason}" in caplog.text


@pytest.mark.parametrize(
    ("capabilities", "chosen"), [([(8, 0)], "bfloat16"), ([(9, 0), (7, 5)], "float32"), ([None], "float32")]
)
def test_on_gpus_auto_follows_the_oldest_one(monkeypatch, capabilities, chosen):
    import tensorflow as tf

    def details(gpu):
        return {} if gpu is None else {"compute_capability": gpu}

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: capabilities)
    monkeypatch.setattr(tf.config.experimental, "get_device_details", details)
    assert precision.resolve_precision("auto", on_gpu=True) == chosen


def test_a_chosen_precision_is_kept():
    assert precision.resolve_precision("float32", on_gpu=True) == "float32"
