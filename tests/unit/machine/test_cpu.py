from pathlib import Path

import pytest

from ffn.machine import limits
from ffn.machine.limits import cpu_flags, cpu_name

MAY_USE_AMX = limits._may_use_amx
CPUINFO = """processor\t: 0
model name\t: A CPU
flags\t\t: fpu sse4_2 amx_bf16
bugs\t\t:

processor\t: 1
flags\t\t: other
"""
FLAGS = "sse4_2 avx avx2 avx_vnni avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16"


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(limits, "_may_use_amx", lambda: True)
    limits._cpuinfo.cache_clear()
    yield
    limits._cpuinfo.cache_clear()


def test_flags_and_name_of_the_first_cpu(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: CPUINFO)
    assert cpu_flags() == {"fpu", "sse4_2", "amx_bf16"} and cpu_name() == "A CPU"


@pytest.mark.parametrize("text", ["processor\t: 0\nFeatures\t: neon\n", None])
def test_a_machine_that_reports_no_flags_has_none(tmp_path, monkeypatch, text):
    def read(path):
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(Path, "read_text", read)
    assert cpu_flags() == frozenset() and cpu_name() == ""


def test_linux_gives_amx_only_to_a_cpu_that_has_it(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: f"flags\t: {FLAGS}\n")
    monkeypatch.setattr(limits, "_may_use_amx", lambda: False)
    assert cpu_flags() == set(FLAGS.split()) - {"amx_tile", "amx_bf16"}
    assert not MAY_USE_AMX() or "amx_tile" in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize(
    ("level", "left"),
    [
        ("AVX2", "sse4_2 avx avx2"),
        ("AVX512_CORE", "sse4_2 avx avx2 avx_vnni avx512f"),
        ("avx512_core_bf16", "sse4_2 avx avx2 avx_vnni avx512f avx512_vnni avx512_bf16"),
        ("AVX512_CORE_AMX", FLAGS),
        ("DEFAULT", FLAGS),
        ("", FLAGS),
    ],
)
def test_a_cpu_held_down_by_onednn_has_the_flags_of_an_older_one(monkeypatch, level, left):
    monkeypatch.setattr(Path, "read_text", lambda path: f"flags\t: {FLAGS}\n")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", level)
    assert cpu_flags() == set(left.split())
