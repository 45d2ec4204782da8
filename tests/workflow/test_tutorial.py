"""The commands of docs/tutorial.md, in order, on a small part of the data and with little training."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
import yaml

from ..small_run import ROOT

PAGE = (ROOT / "docs/tutorial.md").read_text()
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
SCRIPTS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
SIZE = (44, 240, 64)  # voxels; a fifth of the longest side is scored


@pytest.fixture(scope="module")
def lab(tmp_path_factory, shared_fib25):
    """Folder in which all commands have run."""
    folder = tmp_path_factory.mktemp("lab")
    image, labels = (Path(line.partition("=")[2].removesuffix(":stack")) for line in COMMANDS[:2])
    (folder / image).mkdir(parents=True)
    for path in sorted((shared_fib25 / "raw").iterdir())[: SIZE[0]]:
        shutil.copy(path, folder / image)
    with h5py.File(shared_fib25 / "labels_z000-170.h5") as whole, h5py.File(folder / labels, "w") as part:
        part["stack"] = whole["stack"][: SIZE[0], : SIZE[1], : SIZE[2]]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in COMMANDS[2:]:
        words = command.replace("--hours 0.5", "--hours 0.001")
        if words.startswith("ffn view"):  # which serves until Ctrl-C
            words = f"timeout --signal INT 20 {words} | grep -m 1 http:"
        text = "\n".join([*COMMANDS[:2], words.replace("ffn ", f"{sys.executable} -m ffn ", 1)])
        done = subprocess.run(["bash", "-euc", text], cwd=folder, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        if command.startswith("ffn new"):
            values = yaml.safe_load((folder / "first.yaml").read_text())
            values["train"] |= {"max_steps": 1, "validation_steps": 1, "validation_examples": 1, "num_workers": 1}
            (folder / "first.yaml").write_text(yaml.safe_dump(values))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_commands_make_what_the_page_reads_in_python(lab, monkeypatch):
    monkeypatch.chdir(lab)
    for script in SCRIPTS:
        if "import navis" in script:  # no package of the lock file
            assert list(Path(re.search(r'"(results/.*)"', script)[1]).glob("*.swc"))
        else:
            exec(script, found := {})
            assert "table" not in found or found["table"]["voxels"].max() > 2000
