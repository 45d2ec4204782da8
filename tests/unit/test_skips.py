"""In CI nothing is skipped but what needs a GPU; elsewhere a machine may lack what a test needs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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

@pytest.mark.xfail
def test_expected_to_fail():
    raise AssertionError
"""


@pytest.fixture
def outcome(tmp_path):
    """Function that runs the tests in `source` under our conftest.py and returns what pytest prints."""

    def run(source, **variables):
        (tmp_path / "test_skipped.py").write_text(source)
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), **variables}
        words = f"-m pytest -p tests.conftest -p no:cacheprovider -rs {tmp_path}".split()
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        ).stdout

    return run


def test_a_skipped_test_fails_in_ci(outcome):
    found = outcome(SKIPPED, CI="true")
    assert "1 failed, 1 skipped" in found
    assert ": no nginx" in found and "no setpriv" in found
    assert "test_skipped.py:13: no GPU" in found


def test_a_skipped_module_fails_in_ci(outcome):
    found = outcome("import pytest; pytest.importorskip('no_such_module')", CI="true")
    assert "'no_such_module'" in found and "1 error in" in found


def test_a_skipped_test_is_skipped_elsewhere(outcome):
    assert "3 skipped" in outcome(SKIPPED)
