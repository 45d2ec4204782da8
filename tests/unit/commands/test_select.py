"""The command line of `ffn select`."""

import pytest

from ffn.cli import main


@pytest.mark.parametrize("text", ["10", "10=", "10=model", "=model,scores.json"])
def test_an_incomplete_candidate_is_refused(text, tmp_path, capsys):
    assert main(["select", "--candidate", text, "--out", str(tmp_path / "best")]) == 2
    assert "expected NAME=MODEL_DIR,SCORES.json" in capsys.readouterr().err
