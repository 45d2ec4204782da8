"""envs/build_kernels.sh where TensorFlow does not load; Python and the compiler are fakes."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PYTHON = """#!/bin/sh
[ "$1" = -c ] && printf '%s\\n' "$FOLDER/inference.so" "$FOLDER/training.so" && exit
cat >/dev/null
echo "ImportError: no libstdc++" >&2
exit 1
"""
COMPILER = """#!/bin/sh
for argument; do [ "$last" = -o ] && : >"$argument"; last=$argument; done
"""


def test_without_tensorflow_the_kernels_for_inference_are_built_all_the_same(tmp_path):
    for name, text in {"python": PYTHON, "c++": COMPILER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FOLDER": str(tmp_path)}
    command = [ROOT / "envs/build_kernels.sh", tmp_path / "python"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "envs/build_kernels.sh: TensorFlow does not load (ImportError: no libstdc++), "
        "so the kernels for training were not built\n",
    )
    assert sorted(file.name for file in tmp_path.glob("*.so")) == ["inference.so"]
