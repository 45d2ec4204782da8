import pytest

from ffn.cli import main
from ffn.config import PartitionConfig

WORDS = ["partition", "--labels", "l.h5:labels", "--out", "p.h5:partitions", "--lom-radius", "2", "4", "3"]


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.sampling.partition.partition", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    assert main([*WORDS, "--min-size", "200", "--threads", "3"]) == 0
    config = PartitionConfig(lom_radius_zyx=(2, 4, 3))
    assert calls == [
        ("l.h5:labels", "p.h5:partitions", config, None, 0),
        ("l.h5:labels", "p.h5:partitions", config.model_copy(update={"min_size": 200}), None, 3),
    ]


def test_bad_values_are_one_line(capsys):
    assert main([*WORDS, "--thresholds", "0.5", "0.1"]) == 2
    assert "must be 1 to 253 ascending fractions" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*WORDS, "--threads", "-1"])
    assert "'-1' is not a whole number" in capsys.readouterr().err
