"""The command line of `ffn doctor`."""

import pytest

from ffn.cli import main
from ffn.cluster.doctor import Finding


@pytest.mark.parametrize(
    ("verdict", "code", "last"), [("ok", 0, "no check failed"), ("FAIL", 1, "1 of 2 checks failed")]
)
def test_a_failed_check_is_the_exit_code(verdict, code, last, monkeypatch, capsys):
    findings = [Finding("folder", "warn", "is slow"), Finding("one job", verdict, "found it")]
    monkeypatch.setattr("ffn.cluster.doctor.examine", lambda site, check: findings)
    with pytest.raises(SystemExit, match=str(code)):
        main(["doctor", "--profile", "local"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["warn  folder   is slow", f"{verdict:4}  one job  found it", last]
