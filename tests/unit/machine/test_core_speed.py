"""How fast one core multiplies."""

import subprocess

from ffn.machine import core_speed


def test_one_core_is_measured_whatever_the_number_of_threads(monkeypatch, tmp_path):
    """The program gets one thread, and finds NumPy from any folder."""
    seen = {}
    run = subprocess.run

    def recorded(command, env, **options):
        seen.update(env)
        return run(command, env=env, **options)

    monkeypatch.setattr(core_speed.subprocess, "run", recorded)
    names = [f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "GOTO", "MKL")]
    for name in names:
        monkeypatch.setenv(name, "64")
    monkeypatch.chdir(tmp_path)
    assert core_speed.core_flops() > 0
    assert [seen[name] for name in names] == ["1"] * len(names)
