"""The command line of `ffn study`."""

import pytest

from ffn.cli import main


@pytest.mark.parametrize("steps", ["0", "19"])
def test_too_few_steps_to_measure_are_refused_before_anything_starts(steps, capsys):
    options = ["--records", "nowhere", "--volume", "a=r,l", "--out", "nowhere.h5", "--measured-steps", steps]
    assert main(["study", "measure", *options]) == 2
    assert f"--measured-steps: found '{steps}', input should be greater than or equal to 20" in capsys.readouterr().err
