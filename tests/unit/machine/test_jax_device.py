"""The device that JAX takes, on machines with other devices than this one."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ffn.errors import ConfigError
from ffn.machine import gpu as module
from ffn.machine.gpu import jax_device, jax_gpus, keep_programs, results_depend_on


def device(platform, number=0):
    return SimpleNamespace(platform=platform, id=number)


@pytest.fixture
def sees(monkeypatch):
    """Function that gives JAX other devices."""

    def become(*devices, installed=("jax", "jax_plugins")):
        fake = SimpleNamespace(devices=lambda kind=None: [d for d in devices if kind in (None, d.platform)])
        monkeypatch.setitem(sys.modules, "jax", fake)
        monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: name in installed or None)
        monkeypatch.setattr(module.metadata, "entry_points", lambda group: ())
        monkeypatch.setattr(module, "take_gpu", lambda num_gpus: num_gpus - 1)
        monkeypatch.setenv(module.PREALLOCATE, "")  # so that it is restored
        monkeypatch.delenv(module.PREALLOCATE)

    return become


def test_a_process_takes_one_of_the_gpus_and_only_the_memory_it_needs(sees):
    sees(device("gpu", 0), device("gpu", 1))
    assert len(jax_gpus()) == 2 and jax_device().id == 1
    assert os.environ[module.PREALLOCATE] == "false"


@pytest.mark.parametrize(
    ("platform", "given", "machine", "kept"),
    [
        ("gpu", None, "run", "run/programs"),
        ("gpu", None, None, "/home/me/ffn/programs"),
        ("gpu", "/mine", "run", None),
        ("cpu", None, "run", None),
    ],
)
def test_what_is_compiled_for_a_gpu_is_kept_in_one_folder(sees, monkeypatch, platform, given, machine, kept):
    sees(device(platform))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    if given:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", given)
    options = {}
    sys.modules["jax"].config = SimpleNamespace(update=options.__setitem__)
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me")
    keep_programs(machine)
    assert options.get("jax_compilation_cache_dir") == kept


def test_without_a_gpu_it_computes_on_the_cpu(sees):
    sees(device("cpu"))
    assert jax_gpus() == [] and jax_device().platform == "cpu"
    sees(device("gpu"), installed=("jax",))
    assert jax_gpus() == []
    sees(installed=())
    assert jax_gpus() == []
    with pytest.raises(ConfigError, match="engine: found jax.*pip install"):
        jax_device()


def test_gpus_that_jax_cannot_take_are_none_for_auto_and_one_line_for_who_asks_for_jax(sees, monkeypatch, caplog):
    """As with CUDA_VISIBLE_DEVICES=-1, or an old driver."""

    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda':\nNo visible GPU devices. (set JAX_PLATFORMS=cpu)")

    sees()
    monkeypatch.setattr(sys.modules["jax"], "devices", fail)
    assert jax_gpus() == []
    assert "'cuda': No visible GPU devices." in caplog.text
    with pytest.raises(ConfigError, match="engine: .*'cuda'"):
        jax_device()


@pytest.mark.parametrize(
    "kind, driver", [("NVIDIA A100", "PJRT C API\ncuda 13000"), ("NVIDIA H100", "PJRT C API\ncuda 12090")]
)
def test_another_card_or_driver_is_another_device(kind, driver):
    def known(kind, driver):
        return results_depend_on(SimpleNamespace(device_kind=kind, client=SimpleNamespace(platform_version=driver)))

    assert known(kind, driver) == known(kind, driver) != known("NVIDIA H100", "PJRT C API\ncuda 13000")


PROCESS = """
import sys
import jax
from ffn.machine import gpu

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
gpu.jax_gpus = jax.devices  # as if this were a GPU
gpu.keep_programs(sys.argv[1])
jax.jit(lambda x: x * 2 + 1)(3.0)
print(*(sum(name.endswith(f"cache_{kind}") for name in events) for kind in ("hits", "misses")))
"""


@pytest.mark.slow
def test_the_next_process_compiles_nothing_again(tmp_path):
    """Two processes, because JAX opens its folder once."""
    pytest.importorskip("jax")
    process = [sys.executable, "-c", PROCESS, str(tmp_path)]
    without = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    counts = [subprocess.check_output(process, env=without, text=True).split() for _ in range(2)]
    assert counts[0][0] == "0" and counts[1] == [counts[0][1], "0"] and counts[0][1] != "0"
    assert list((tmp_path / "programs").glob("*-cache"))
