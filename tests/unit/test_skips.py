"""In CI nothing is skipped but what needs a GPU; elsewhere a machine may lack what a test needs."""

import os
import subprocess
import sys
from pathlib import Path

SKIPPED = """
import pytest

def test_body():
    pytest.skip("no nginx")

@pytest.mark.skipif(True, reason="no setpriv")
def test_mark():
    pass

@pytest.mark.gpu
def test_gpu():
    pytest.skip("no GPU")
"""


def test_a_skipped_test_or_module_fails_in_ci(tmp_path):
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    (tmp_path / "test_module.py").write_text("import pytest; pytest.importorskip('no_such_module')")
    words = f"{sys.executable} -m pytest -p tests.conftest -rs --continue-on-collection-errors".split()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CI": "true"}
    found = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    for said in ("1 failed, 1 skipped", "2 errors", ": no nginx", "no setpriv", "'no_such_module'", ": no GPU"):
        assert said in found
