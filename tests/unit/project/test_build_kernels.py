"""envs/build_kernels.sh; Python and the compiler are fakes."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PYTHON = """#!/bin/sh
[ "$1" = -c ] && printf '%s\\n' "$FOLDER/inference.so" "$FOLDER/training.so" && exit
cat >/dev/null
echo "ImportError: no libstdc++" >&2
exit 1
"""
COMPILER = """#!/bin/sh
[ -e "$FOLDER/no-compiler" ] && exit 1
for argument; do [ "$last" = -o ] && : >"$argument"; last=$argument; done
"""


@pytest.fixture
def build(tmp_path):
    for name, text in {"python": PYTHON, "c++": COMPILER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    search = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = {**os.environ, **search, "FOLDER": str(tmp_path)}
    command = [ROOT / "envs/build_kernels.sh", tmp_path / "python"]
    return lambda: subprocess.run(command, env=environment, capture_output=True, text=True)


def test_without_tensorflow_the_kernels_for_inference_are_built_all_the_same(tmp_path, build):
    done = build()
    assert done.returncode == 1 and "no libstdc++" in done.stderr
    assert sorted(file.name for file in tmp_path.glob("*.so")) == ["inference.so"]


def test_kernels_that_another_environment_has_built_are_taken(tmp_path, build):
    build()
    (tmp_path / "inference.so").unlink()
    (tmp_path / "no-compiler").touch()
    build()
    assert sorted(file.name for file in tmp_path.glob("*.so")) == ["inference.so"]
