"""The pinned environment: every file that names versions names the same ones."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ffn

ROOT = Path(__file__).resolve().parents[3]
ENVS = ROOT / "envs"
LOCKS = ["requirements.lock", "requirements-gpu.lock", "horovod.lock", "docs.lock", "carried.lock", "bare.lock"]


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """Requirements by canonical name; comments, hashes and blank lines left out."""
    bare = (re.sub(r"\s*(--hash\S*|\\|#.*|^-r .*)", "", line).strip() for line in lines)
    parsed = [Requirement(line) for line in bare if line]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


def read(name: str) -> dict[str, Requirement]:
    return requirements((ENVS / name).read_text().splitlines())


def versions(pins: dict[str, Requirement]) -> dict[str, str]:
    return {name: str(pin.specifier).removeprefix("==") for name, pin in pins.items()}


@pytest.mark.parametrize("name", ["requirements", "docs", "carried", "bare"])
def test_lock_fulfils_every_requirement(name):
    locked = versions(read(f"{name}.lock"))
    for package, requirement in read(f"{name}.in").items():
        assert requirement.specifier.contains(locked[package]), f"{package} {locked[package]}: run make lock"


def test_lock_covers_what_the_package_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = requirements(
        project["dependencies"] + extras["cpu"] + extras["view"] + extras["test"] + extras["workflow"]
    )
    locked = versions(read("requirements.lock"))
    for name, requirement in declared.items():
        assert requirement.specifier.contains(locked[name]), name


def test_gpu_lock_differs_by_tensorflow_and_cuda_only():
    cpu, gpu = versions(read("requirements.lock")), versions(read("requirements-gpu.lock"))
    assert cpu.pop("tensorflow-cpu") == gpu.pop("tensorflow")
    assert cpu == {name: pin for name, pin in gpu.items() if not name.startswith(("nvidia-", "jax-cuda"))}
    assert any(name.startswith("nvidia-nccl") for name in gpu)


def test_conda_environment_has_the_locked_versions():
    environment = yaml.safe_load((ENVS / "ffn.yaml").read_text())
    pip_section = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert requirements(pip_section) == read("requirements.lock")


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_has_a_hash(lock):
    blocks = re.split(r"\n(?=\w)", (ENVS / lock).read_text())
    pins = [block for block in blocks if re.match(r"[\w.-]+==", block)]
    assert pins
    assert all("--hash=sha256:" in block for block in pins)


@pytest.mark.parametrize("name", [*LOCKS, "requirements.in", "docs.in", "ffn.yaml"])
def test_no_package_host_is_written_down(name):
    assert "://" not in (ENVS / name).read_text()


def test_versions_are_those_of_the_locks():
    locked = versions(read("requirements.lock"))
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    named = {repository["repo"].rpartition("/")[2]: repository["rev"] for repository in repositories}
    assert named == {"ruff-pre-commit": f"v{locked['ruff']}", "snakefmt": f"v{locked['snakefmt']}"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == ffn.__version__
    assert f"\n## {ffn.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_running_environment_is_the_locked_one():
    gpu_build = (ROOT / ".venv" / ".variant").read_text().startswith("gpu")
    pins = read("requirements-gpu.lock" if gpu_build else "requirements.lock") | read("horovod.lock")
    applicable = {name: pin for name, pin in pins.items() if not pin.marker or pin.marker.evaluate()}
    found = {name: version(name) for name in applicable}
    release, _, patched = found["horovod"].partition("+")  # by envs/horovod-builds.patch
    assert patched == "ffn"
    assert found | {"horovod": release} == versions(applicable)


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split()
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[1] for line in shown.splitlines()] == targets
    assert set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) == set(targets)
