from pathlib import Path

import pytest

from ffn.machine.cpu import cpu_flags

CPUINFO = """processor\t: 0
model name\t: A CPU
flags\t\t: fpu sse4_2 amx_bf16
bugs\t\t:

processor\t: 1
flags\t\t: other
"""


@pytest.fixture(autouse=True)
def _forget():
    cpu_flags.cache_clear()
    yield
    cpu_flags.cache_clear()


def test_flags_of_the_first_cpu(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: CPUINFO)
    assert cpu_flags() == {"fpu", "sse4_2", "amx_bf16"}


def test_a_machine_that_reports_no_flags_has_none(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: "processor\t: 0\nFeatures\t: neon\n")
    assert cpu_flags() == frozenset()


def test_a_machine_without_cpuinfo_has_no_flags(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert cpu_flags() == frozenset()
