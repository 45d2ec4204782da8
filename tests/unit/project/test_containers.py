"""The two definitions of a container, read as far as a machine without a container runtime can."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENVS = ROOT / "envs"


def lines_of(name: str) -> list[str]:
    """Return the lines of a file in envs/, without comments and blank lines."""
    lines = (line.strip() for line in (ENVS / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def dockerfile() -> tuple[str, list[str], list[str]]:
    """Return base image, copied files and commands of envs/Dockerfile."""
    words = [line.partition(" ")[::2] for line in lines_of("Dockerfile")]
    copied = [name for kind, rest in words if kind == "COPY" for name in rest.split()[:-1]]
    (base,) = [rest for kind, rest in words if kind == "FROM"]
    return base, copied, [rest for kind, rest in words if kind == "RUN"]


def definition() -> tuple[str, list[str], list[str]]:
    """Return base image, copied files and commands of envs/ffn.def."""
    head, *parts = re.split(r"^%", "\n".join(lines_of("ffn.def")), flags=re.MULTILINE)
    sections = {part.splitlines()[0]: part.splitlines()[1:] for part in parts}
    assert "Bootstrap: docker" in head
    return re.search("From: (.*)", head)[1], [line.split()[0] for line in sections["files"]], sections["post"]


def test_both_make_the_same():
    assert dockerfile() == definition()


def test_what_is_copied_is_in_the_repository_and_is_all_that_the_package_needs():
    _, copied, _ = dockerfile()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = {line.split("/")[0] for line in tracked.splitlines()}
    assert set(copied) <= known
    read = set(re.findall(r'"(README.md|LICENSE)"', (ROOT / "pyproject.toml").read_text()))
    linked = {path.readlink().name for path in (ROOT / "ffn/pipeline").iterdir()}
    assert {"envs", "ffn", "pyproject.toml", *linked, *read} == set(copied)
    assert {line[1:] for line in lines_of("Dockerfile.dockerignore") if line.startswith("!")} == set(copied)
