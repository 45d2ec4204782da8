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
    (((data, model, train, rng_seed), *others),) = calls
    assert (data.records, model.depth, rng_seed, others) == ("r", 2, 3, ["runs", "m.csv", None])
    assert train == TrainConfig()
    with pytest.raises(SystemExit):
        main(words[:-2])
    assert "--volume" in capsys.readouterr().err
