"""`make setup` on machines where something is missing or was interrupted; Python, pip and compilers are fakes."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Answers like a real interpreter and records what pip was asked for.
FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$*" in
    *version_info*) echo "@VERSION@" ;;
    *_base_executable*) echo "@SELF@" ;;
    "-m venv "*) mkdir -p "$3/bin" && cp "@SELF@" "$3/bin/python" && cp "$FAKE_FFN" "$3/bin/ffn" ;;
    "- "*) echo "tf-$FAKE_TENSORFLOW" ;;
    *library_path*)
        [[ "$FAIL" == kernels ]] && exit 1
        touch "$HOME/kernels.so" && echo "$HOME/kernels.so" && echo "$HOME/kernels.so" ;;
    "-c import nvidia.nccl;"*) [[ "$NCCL_OF_PYTHON" ]] && echo "$NCCL_OF_PYTHON" || exit 1 ;;
    *" download "*)
        mkdir -p horovod-0 && echo released >horovod-0/source
        tar -czf "${@: -1}/horovod-0.tar.gz" horovod-0 ;;
    *" wheel "*)
        mkdir "${@: -2:1}" && cp "${@: -1}/source" "${@: -2:1}/horovod-0+$HOROVOD_LOCAL_VERSION-py3-none-any.whl"
        [[ "$FAIL" == wheel ]] && exit 1
        env >"$HOME/built-with"
        echo built >>"$FAKE_LOG" ;;
    *"pip "*)
        echo "$*" >>"$FAKE_LOG"
        if [[ "$FAIL" == interrupted && "$*" == *half-* ]]; then
            echo $$ >>"$HOME/pips"
            exec sleep 300
        fi
        [[ "$FAIL" == half-* && "$*" == *"$FAIL"* ]] && { echo "no space left"; exit 1; } ;;
esac
exit 0
"""

PATCH = "What is changed.\n\n--- a/source\n+++ b/source\n@@ -1 +1 @@\n-{}\n+{}\n"
BUILDS, WAKES_UP = PATCH.format("released", "builds"), PATCH.format("builds", "wakes up")


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
        (self.clone / "envs" / "horovod-wakes-up.patch").write_text(WAKES_UP)
        shutil.copytree(ROOT / "ffn" / "kernels", self.clone / "ffn" / "kernels")
        shutil.copy(ROOT / "pyproject.toml", self.clone)
        self.bin.mkdir()
        self.log.touch()
        for tool in ["c++", "make", "mpicxx", "mpirun", "chromium", "apt-get"]:
            script(self.bin / tool)
        self.add_python("python3", "3.11")
        self.environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "FAKE_FFN": str(script(folder / "ffn")),
            "FAKE_TENSORFLOW": "2.21.0",
            "FAKE_LOG": str(self.log),
            "NCCL_OF_PYTHON": "",
            "FAIL": "",
        }

    def add_python(self, name: str, version: str) -> None:
        path = self.bin / name
        script(path, FAKE_PYTHON.replace("@VERSION@", version).replace("@SELF@", str(path)))

    def lose(self, tool: str) -> None:
        script(self.bin / tool, "#!/bin/sh\nexit 127\n")

    def offer_packages(self) -> Path:
        """Let apt-get succeed as on Debian; return the file that records what it was asked for."""
        calls = self.bin.parent / "apt.log"
        sizes = "Need to get 63.1 MB of archives.\nAfter this operation, 414 MB of additional disk space will be used."
        script(self.bin / "apt-get", f"#!/bin/sh\necho $* >>{calls}\necho '{sizes}'\n")
        return calls

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


def test_second_setup_does_nothing(machine):
    assert machine.setup().returncode == 0
    assert "requirements.lock" in machine.log.read_text()
    second = machine.setup()
    assert (second.returncode, second.stdout, second.stderr, machine.log.read_text()) == (0, "", "", "")


def test_two_halves_of_the_lock_are_installed(machine):
    machine.setup()
    halves = re.findall(r"--require-hashes -r (\S+)", machine.log.read_text())
    assert len(halves) == 2
    assert sorted(line for half in halves for line in Path(half).read_text().splitlines()) == sorted(
        (machine.clone / "envs/requirements.lock").read_text().splitlines()
    )


def test_changed_lock_is_installed(machine):
    machine.setup()
    with (machine.clone / "envs" / "requirements.lock").open("a") as lock:
        lock.write("more==1.0\n")
    assert machine.setup().returncode == 0
    assert "requirements.lock" in machine.log.read_text()


def test_python_too_old(machine):
    machine.add_python("python3.9", "3.9")
    result = machine.setup(PYTHON="python3.9")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "python3.9 is 3.9" in result.stderr and "3.11, 3.12 or 3.13" in result.stderr
    assert not (machine.clone / ".venv").exists()


def test_chosen_python_is_remembered(machine):
    machine.setup()
    machine.add_python("python3.12", "3.12")
    assert machine.setup(PYTHON="python3.12").returncode == 0
    assert (machine.clone / ".venv" / ".variant").read_text().startswith("cpu 3.12 ")
    assert machine.setup().stderr == ""


def test_missing_compiler_stops_and_names_the_command(machine):
    machine.lose("c++")
    machine.lose("apt-get")
    result = machine.setup()
    assert result.returncode == 1
    assert "missing: a C++ compiler" in result.stderr.splitlines()[-1]
    assert "sudo apt-get install -y g++ make patch" in result.stderr.splitlines()[-1]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root installs system packages")


@needs_root
def test_root_is_told_what_is_installed_how_large_it_is_and_why(machine):
    machine.lose("mpicxx")
    calls = machine.offer_packages()
    line = next(line for line in machine.setup().stderr.splitlines() if "installing libopenmpi-dev" in line)
    assert "openmpi-bin (63.1 MB, 414 MB on disk): MPI (Horovod uses Gloo instead). SYSTEM=0 leaves it out" in line
    assert "install -y --no-install-recommends libopenmpi-dev openmpi-bin" in calls.read_text()


@needs_root
def test_system_0_touches_no_system_package(machine):
    machine.lose("mpicxx")
    calls = machine.offer_packages()
    result = machine.setup(SYSTEM="0", BROWSER="1")
    assert result.returncode == 0 and "continuing without: MPI" in result.stderr
    assert not calls.exists()


@needs_root
def test_a_browser_is_installed_only_where_it_is_asked_for(machine):
    machine.lose("chromium")
    calls = machine.offer_packages()
    assert machine.setup().returncode == 0 and not calls.exists()
    result = machine.setup(BROWSER="1")
    assert "install -y --no-install-recommends chromium" in calls.read_text() and "locked packages" not in result.stderr


def test_uv_installs_the_packages_where_it_is_there(machine):
    script(machine.bin / "uv", f"#!/bin/sh\necho uv $* >>{machine.log}\n")
    assert machine.setup().returncode == 0
    locked, ours = [line for line in machine.log.read_text().splitlines() if line.startswith("uv pip install")]
    assert "--require-hashes -r envs/requirements.lock" in locked and "--editable ." in ours


def test_another_compiler_makes_another_wheel(machine):
    machine.setup()
    script(machine.bin / "c++", "#!/bin/sh\necho 14.2\n")
    with (machine.clone / "pyproject.toml").open("a") as changed:
        changed.write("# changed\n")
    machine.setup()
    assert len(machine.wheels()) == 2


def test_missing_mpi_is_reported_and_gloo_used(machine):
    machine.lose("mpicxx")
    machine.lose("apt-get")
    result = machine.setup()
    assert result.returncode == 0
    assert "continuing without: MPI" in result.stderr and "libopenmpi-dev" in result.stderr
    assert "with Gloo only" in result.stderr
    assert machine.wheels()[0].parent.name.count("mpi") == 0


def test_mpi_installed_later_gets_its_own_wheel(machine):
    machine.lose("mpicxx")
    machine.setup()
    script(machine.bin / "mpicxx", "#!/bin/sh\necho g++ -lmpi\n")
    machine.setup()
    assert sorted("mpi" in wheel.parent.name for wheel in machine.wheels()) == [False, True]


def test_crays_compiler_brings_the_mpi(machine):
    """On a Cray nothing is called mpicxx; CC knows MPI if its module is loaded, and has no option -show."""
    machine.lose("mpicxx")
    machine.lose("apt-get")
    crays = '#!/bin/sh\n[ "$1" = --cray-print-opts=all ] && echo -lsci -lmpi_gnu\n'
    compiler = script(machine.bin / "CC", crays)
    result = machine.setup()
    assert f"with Gloo and MPI ({compiler})" in result.stderr and "continuing without: MPI" not in result.stderr
    assert f"CXX={compiler}" in (machine.bin.parent / "built-with").read_text()
    script(compiler, crays.replace("-lmpi_gnu", ""))
    assert "with Gloo only" in machine.setup().stderr, "its module is not loaded"


def test_mpicxx_of_the_user_is_taken(machine):
    mine = script(machine.bin / "mpiicpx", "#!/bin/sh\necho icpx -lmpi\n")
    assert f"with Gloo and MPI ({mine})" in machine.setup(MPICXX=str(mine)).stderr
    assert f"CXX={mine}" in (machine.bin.parent / "built-with").read_text()
    assert "with Gloo only: nowhere was not found" in machine.setup(MPICXX="nowhere").stderr


@pytest.mark.parametrize("half", ["half-0", "half-1"])
def test_failed_install_shows_the_log_and_the_next_setup_starts_over(machine, half):
    result = machine.setup(FAIL=half)
    assert result.returncode == 1
    assert "no space left" in result.stderr
    leftover = machine.clone / ".venv" / "half-written"
    leftover.touch()
    assert machine.setup().returncode == 0
    assert not leftover.exists()


def test_an_interrupted_setup_leaves_no_pip_behind(machine, tmp_path):
    command, environment = [machine.clone / "envs" / "setup.sh"], machine.environment | {"FAIL": "interrupted"}
    with subprocess.Popen(command, env=environment, cwd=tmp_path) as setup:
        pips = tmp_path / "pips"
        while not pips.exists() or len(pips.read_text().splitlines()) < 2:
            time.sleep(0.02)
        setup.terminate()
    assert setup.returncode == 130
    while any(Path(f"/proc/{pid}").exists() for pid in pips.read_text().split()):
        time.sleep(0.02)
    assert machine.setup().returncode == 0


@pytest.mark.parametrize(
    ("has_header", "is_system", "backend"), [(0, 0, ""), (1, 0, "-nccl-of-python"), (1, 1, "-nccl")]
)
def test_horovod_takes_the_nccl_of_python_where_the_system_has_none(machine, tmp_path, has_header, is_system, backend):
    script(machine.bin / "nvcc")
    nccl, system = tmp_path / "site-packages/nvidia/nccl", tmp_path / "system"
    for folder, is_there in ((nccl, has_header), (system, is_system)):
        (folder / "include").mkdir(parents=True)
        if is_there:
            (folder / "include/nccl.h").touch()
    done = machine.setup(GPU="1", HOROVOD_NCCL_HOME=str(system), NCCL_OF_PYTHON=str(nccl))
    assert done.returncode == 0
    built_with = (tmp_path / "built-with").read_text()
    assert ("HOROVOD_GPU_OPERATIONS=NCCL" in built_with) == bool(backend)
    assert (f"with NCCL of {nccl}: gradients are reduced on the GPU" in done.stderr) == (backend == "-nccl-of-python")
    rpath = "HOROVOD_NCCL_LINK=SHARED" in built_with, "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib" in built_with
    assert rpath == (backend == "-nccl-of-python",) * 2
    (wheel,) = machine.wheels()
    assert f"{backend}-" in wheel.parent.name and ("nccl" in wheel.parent.name) == bool(backend)


def test_failed_horovod_build_leaves_no_wheel_and_keeps_the_packages(machine):
    result = machine.setup(FAIL="wheel")
    assert result.returncode == 1
    assert "Horovod was not built" in result.stderr
    assert machine.wheels() == []
    kept = machine.clone / ".venv" / "kept"
    kept.touch()
    assert machine.setup().returncode == 0
    assert kept.exists() and len(machine.wheels()) == 1


def test_patch_that_does_not_apply_leaves_no_wheel_and_a_changed_patch_makes_another_wheel(machine):
    patch = machine.clone / "envs" / "horovod-wakes-up.patch"
    patch.write_text(WAKES_UP.replace("-builds", "-something else"))
    assert machine.setup().returncode == 1
    assert machine.wheels() == []
    for text in (WAKES_UP, f"More. {WAKES_UP}"):
        patch.write_text(text)
        assert machine.setup().returncode == 0
    assert len(machine.wheels()) == 2


def test_horovod_patch_build_makes_another_wheel_and_is_remembered(machine):
    machine.setup()
    assert machine.setup(HOROVOD_PATCH="build").returncode == 0
    assert {wheel.name.split("-")[1]: wheel.read_text() for wheel in machine.wheels()} == {
        "0+ffn": "wakes up\n",
        "0+ffn.build": "builds\n",
    }
    assert "horovod-0+ffn.build-" in machine.log.read_text()
    assert machine.setup().stderr == "", "the choice is remembered"
    assert machine.setup(HOROVOD_PATCH="all").returncode == 0
    assert "horovod-0+ffn-" in machine.log.read_text()


def test_unknown_horovod_patch_is_refused_at_once(machine):
    result = machine.setup(HOROVOD_PATCH="wakes-up")
    assert (result.returncode, result.stderr) == (
        1,
        "HOROVOD_PATCH: found 'wakes-up', expected 'all' (the default) or 'build'.\n",
    )
    assert not (machine.clone / ".venv").exists()


def test_kernels_that_could_not_be_built_are_tried_again_by_the_next_setup(machine):
    for _ in range(2):
        result = machine.setup(FAIL="kernels")
        assert result.returncode == 0 and "they were not built" in result.stderr
    assert machine.log.read_text() == "", "nothing else is repeated"
    assert machine.setup().stderr == "setup: [5/5] the kernels for CPUs\n"
    assert machine.setup().stderr == ""


def test_second_clone_reuses_the_wheel(machine):
    machine.setup()
    shutil.rmtree(machine.clone / ".venv")
    assert machine.setup().returncode == 0
    assert "built" not in machine.log.read_text()


def test_another_tensorflow_gets_another_wheel(machine):
    machine.setup()
    shutil.rmtree(machine.clone / ".venv")
    machine.setup(FAKE_TENSORFLOW="2.22.0")
    assert len(machine.wheels()) == 2


def test_gpu_takes_the_other_lock_in_a_new_environment(machine):
    machine.setup()
    (machine.clone / ".venv" / "of-the-cpu").touch()
    assert machine.setup(GPU="1").returncode == 0
    assert "requirements-gpu.lock" in machine.log.read_text()
    assert not (machine.clone / ".venv" / "of-the-cpu").exists()
    assert machine.setup().stderr == "", "the choice is remembered"
    machine.setup(GPU="0")
    assert "requirements.lock" in machine.log.read_text()
