"""`make setup` and the build of the kernels on machines where something is missing; the programs are fakes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Answers like a real interpreter and records what pip was asked for.
FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$*" in
    *version_info*) echo 3.11 ;;
    *_base_executable*) echo "@SELF@" ;;
    "-m venv "*) mkdir -p "$3/bin" "$3/lib" && cp "@SELF@" "$3/bin/python" && cp "$FAKE_FFN" "$3/bin/ffn" ;;
    "- "*) echo "tf-$FAKE_TENSORFLOW" ;;
    *library_path*)
        [[ "$FAIL" == kernels ]] && exit 1
        touch "$HOME/kernels.so" && echo "$HOME/kernels.so" && echo "$HOME/kernels.so" ;;
    *" download "*)
        mkdir -p horovod-0 && echo released >horovod-0/source
        tar -czf "${@: -1}/horovod-0.tar.gz" horovod-0 ;;
    *" wheel "*)
        mkdir "${@: -2:1}" && cp "${@: -1}/source" "${@: -2:1}/horovod-0+$HOROVOD_LOCAL_VERSION-py3-none-any.whl"
        [[ "$FAIL" == wheel ]] && exit 1
        echo built >>"$FAKE_LOG" ;;
    *"pip "*)
        echo "$* $UV_DEFAULT_INDEX" >>"$FAKE_LOG"
        [[ "$FAIL" == packages && "$*" == *requirements* ]] && { echo "no space left"; exit 1; }
        [[ "$FAIL" == offline ]] && exit 1
        [[ "$FAIL" == uv && "$*" == "-m uv "* ]] && mkdir "$UV_CACHE_DIR" && touch "${0%/bin/*}/lib/half" && exit 1 ;;
esac
exit 0
"""

BUILDS = "What is changed.\n\n--- a/source\n+++ b/source\n@@ -1 +1 @@\n-released\n+builds\n"


def script(path: Path, text: str = "#!/bin/sh\nexit 0\n") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


class Machine:
    """A clone of the set-up files, on a machine where every tool is a fake."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.bin, self.log = folder / "clone", folder / "bin", folder / "pip.log"
        shutil.copytree(ROOT / "envs", self.clone / "envs")
        (self.clone / "envs" / "horovod-builds.patch").write_text(BUILDS)
        shutil.copytree(ROOT / "ffn" / "kernels", self.clone / "ffn" / "kernels")
        shutil.copy(ROOT / "pyproject.toml", self.clone)
        self.bin.mkdir()
        self.log.touch()
        for tool in ["c++", "make", "mpicxx", "mpirun", "chromium", "apt-get"]:
            script(self.bin / tool)
        python = self.bin / "python3"
        script(python, FAKE_PYTHON.replace("@SELF@", str(python)))
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "FAKE_FFN": str(script(folder / "ffn")),
            "FAKE_TENSORFLOW": "2.21.0",
            "FAKE_LOG": str(self.log),
            "FAIL": "",
        }

    def setup(self, **changes: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        command = [self.clone / "envs" / "setup.sh"]
        return subprocess.run(
            command, env=self.environment | changes, cwd=self.bin.parent, capture_output=True, text=True
        )

    def wheels(self) -> list[Path]:
        return sorted((self.bin.parent / "cache").rglob("*.whl"))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_failed_install_shows_the_log_and_the_next_setup_starts_over(machine):
    result = machine.setup(FAIL="packages")
    assert result.returncode == 1
    assert "no space left" in result.stderr
    leftover = machine.clone / ".venv" / "half-written"
    leftover.touch()
    assert machine.setup().returncode == 0
    assert not leftover.exists()


def test_a_setup_without_a_network_keeps_the_packages(machine):
    machine.setup()
    (machine.clone / ".venv" / "kept").touch()
    with (machine.clone / "envs/requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    assert machine.setup(FAIL="offline").returncode == 1
    assert (machine.clone / ".venv" / "kept").exists()


def test_pip_installs_what_uv_cannot(machine):
    for failure in ("", "uv"):
        shutil.rmtree(machine.clone / ".venv", ignore_errors=True)
        assert machine.setup(FAIL=failure, PIP_INDEX_URL="https://pypi.example/simple").returncode == 0
        calls = [line for line in machine.log.read_text().splitlines() if "requirements.lock" in line]
        assert [call.split()[1] for call in calls] == ["uv", "pip"][: 1 + bool(failure)]
    assert "https://pypi.example/simple" in machine.log.read_text()
    assert not {*(machine.clone / ".venv").glob(".uv"), *(machine.clone / ".venv").glob("lib/half")}, "of a failed uv"


def test_failed_horovod_build_leaves_no_wheel_and_keeps_the_packages(machine):
    result = machine.setup(FAIL="wheel")
    assert result.returncode == 1
    assert machine.wheels() == []
    kept = machine.clone / ".venv" / "kept"
    kept.touch()
    assert machine.setup().returncode == 0
    assert kept.exists() and len(machine.wheels()) == 1


def test_kernels_that_could_not_be_built_are_tried_again_by_the_next_setup(machine):
    for _ in range(2):
        result = machine.setup(FAIL="kernels")
        assert result.returncode == 0 and "not built" in result.stderr
    assert machine.log.read_text() == "", "nothing else"
    assert "[5/5]" in machine.setup().stderr
    assert machine.setup().stderr == ""


def test_gpu_takes_the_other_lock_in_a_new_environment(machine):
    machine.setup()
    (machine.clone / ".venv" / "of-the-cpu").touch()
    assert machine.setup(GPU="1").returncode == 0
    assert "requirements-gpu.lock" in machine.log.read_text()
    assert not (machine.clone / ".venv" / "of-the-cpu").exists()
    assert machine.setup().stderr == "", "the choice is remembered"
    machine.setup(GPU="0")
    assert "requirements.lock" in machine.log.read_text()


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


def test_kernels_are_built_without_tensorflow_or_taken_from_another_environment(tmp_path, build):
    done = build()
    assert done.returncode == 1 and "no libstdc++" in done.stderr
    assert sorted(file.name for file in tmp_path.glob("*.so")) == ["inference.so"]
    build()
    (tmp_path / "inference.so").unlink()
    (tmp_path / "no-compiler").touch()
    build()
    assert sorted(file.name for file in tmp_path.glob("*.so")) == ["inference.so"]
