"""The kernels in float32, compiled for vectors of every size from instructions that any CPU has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ffn import kernels

KERNELS = Path(kernels.__file__).parent
FOR_TESTS = KERNELS.parents[1] / "tests/kernels"
INSTRUCTIONS = {4: "kPlain", 8: "kAvx2", 16: "kAvx512"}  # by float32 numbers of a vector
# Checks of a null pointer, and of pointers that are not used, take half of the compiler's time; ASan sees each access.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize=null,pointer-overflow", "-fno-sanitize-recover=all"]


def compile_float32(source: Path, folder: Path, *flags: str) -> list[Path]:
    """Return the object files of the units of work and of both networks."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler; Debian's package is called g++")
    command = ["c++", "-Og", "-g1", "-std=c++20", "-fPIC", "-Wno-psabi", *flags]
    jobs = {folder / f"{name}.o": [source / f"{name}.cc"] for name in ("inference", "float_network")}
    for lanes, name in INSTRUCTIONS.items():
        jobs[folder / f"{name}.o"] = [f"-DFFN_LANES={lanes}", f"-DFFN_INSTRUCTIONS={name}", source / "winograd.cc"]
    compilers = [subprocess.Popen([*command, *job, "-c", "-o", file]) for file, job in jobs.items()]
    assert [compiler.wait() for compiler in compilers] == [0] * len(jobs)
    return list(jobs)


@pytest.fixture(scope="session")
def float32_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return compile_float32(KERNELS, tmp_path_factory.mktemp("float32"))


@pytest.fixture(scope="session")
def strict_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources in which buffers have their exact size and hold NaN at first."""
    folder = tmp_path_factory.mktemp("strict") / "kernels"
    shutil.copytree(KERNELS, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(FOR_TESTS / "strict/memory.h", folder)
    return folder


@pytest.fixture(scope="session")
def sanitized_objects(strict_kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return compile_float32(strict_kernels, tmp_path_factory.mktemp("sanitized"), *SANITIZERS, "-O0")
