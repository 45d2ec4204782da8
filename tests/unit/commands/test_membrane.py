from ffn.cli import main
from ffn.config import MembraneConfig
from ffn.geometry import Box

WORDS = ["membrane", "--image", "a.h5:raw", "--out", "m.h5"]


def test_options_reach_the_stage(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("ffn.sampling.membrane.membrane", lambda *given: calls.append(given))
    assert main([*WORDS, "--box", "5:20,0:20,20:50", "--sigma", "2"]) == 0
    assert calls == [("a.h5:raw", "m.h5", MembraneConfig(sigma=2), Box((5, 0, 20), (20, 20, 50)))]
    assert main([*WORDS, "--sigma", "0"]) == 2
    assert "--sigma: found '0', input should be greater than 0" in capsys.readouterr().err
