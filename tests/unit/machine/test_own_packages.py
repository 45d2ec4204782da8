"""Packages in PYTHONPATH that have the names of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# An editable installation finds what is missing in the other package.
START = "import sys, ffn; ffn.__path__ = [*ffn.__path__, sys.argv.pop(1)]; "
COMMAND = START + "from ffn.cli import main; sys.exit(main())"
PROFILE = START + "from ffn.workflow.config_files import check_configfiles; check_configfiles()"


@pytest.mark.parametrize("command", [[COMMAND, str(ROOT / "ffn"), "export", "--help"], [PROFILE, str(ROOT / "ffn")]])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ffn/__init__.py", ""),
        ("ffn/inference/seed.py", ""),  # a namespace
        ("tensorstore.py", "raise ImportError('for another Python')"),
    ],
)
def test_another_package_in_pythonpath_is_named(name, text, command, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
    folders = [str(tmp_path)] if name == "ffn/inference/seed.py" else [str(tmp_path), str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-c", *command], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "PYTHONPATH" in done.stderr and str(tmp_path) in done.stderr
