from ffn.cli import main
from ffn.config import CoordinatesConfig

WORDS = ["coordinates", "--partitions", "p.h5:partitions", "--out", "c.h5"]


def test_options_reach_the_stage(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("ffn.sampling.coordinates.coordinates", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    assert main([*WORDS, "--membrane", "m.h5", "--margin", "2", "3", "5", "--min-membrane-distance", "1.5"]) == 0
    config = CoordinatesConfig(margin_zyx=(2, 3, 5), min_membrane_distance=1.5)
    assert calls == [
        ("p.h5:partitions", None, "c.h5", CoordinatesConfig(), None),
        ("p.h5:partitions", "m.h5", "c.h5", config, None),
    ]
    assert main([*WORDS, "--margin", "2", "3", "-5"]) == 2
    assert "--margin: found '-5'" in capsys.readouterr().err
