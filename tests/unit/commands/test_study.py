"""The command line of `ffn study`."""

import pytest

from ffn.cli import main
from ffn.training.config import TrainConfig


@pytest.mark.parametrize("steps", ["0", "19"])
def test_too_few_steps_to_measure_are_refused_before_anything_starts(steps, capsys):
    training = ["--", "--records", "nowhere", "--volume", "a=r,l"]
    assert main(["study", "measure", "--out", "nowhere.h5", "--measured-steps", steps, *training]) == 2
    assert f"--measured-steps: found '{steps}'" in capsys.readouterr().err


def test_options_of_the_training_follow_two_dashes(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("ffn.studies.trainings.train_point", lambda *given: calls.append(given))
    words = ["study", "train", "--runs", "runs", "--out", "m.csv", "--", "--records", "r", "--volume", "a=i,l"]
    assert main([*words, "--rng-seed", "3", "--depth", "2"]) == 0
    ((training, *others),) = calls
    assert (training.data.records, training.model.depth, training.rng_seed) == ("r", 2, 3)
    assert training.config == TrainConfig() and others == ["runs", "m.csv", None]
    with pytest.raises(SystemExit):
        main(words[:-2])
    assert "--volume" in capsys.readouterr().err
