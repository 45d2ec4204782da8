"""The command line of `ffn launch`."""

import subprocess
import sys

import pytest

from ffn.cli import main


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-n", "0", "--", "true"], "--num-ranks: '0'"),
        (["-n", "1", "--launcher-options", "'", "--", "true"], "--launcher-options: "),
        (["-n", "1", "--grace-seconds", "-1", "--", "true"], "--grace-seconds: '-1'"),
    ],
)
def test_a_mistake_is_one_line(words, named, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", *words])
    assert named in capsys.readouterr().err
    assert main(["launch", "-n", "1"]) == 2
    assert "launch: " in capsys.readouterr().err


def test_a_missing_command_is_named_without_a_traceback():
    words = ["-n", "1", "--launcher", "local", "--", "no-such-command"]
    done = subprocess.run([sys.executable, "-m", "ffn", "launch", *words], capture_output=True, text=True)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "no-such-command" in done.stderr


def test_the_grace_is_an_option(monkeypatch):
    given = []

    def run_together(command, environments, grace, own_groups):
        given.append((len(environments), grace))
        return 7

    monkeypatch.setattr("ffn.cluster.launch.run_together", run_together)
    options = ["--launcher", "local", "--grace-seconds", "0.5"]
    with pytest.raises(SystemExit, match="7"):
        main(["launch", "-n", "2", *options, "--", "true"])
    assert given == [(2, 0.5)]
