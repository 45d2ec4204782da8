from ffn.cli import main
from ffn.geometry import Box

WORDS = ["segment", "--image", "a.h5:raw", "--model", "model", "--out", "b.h5:seg"]


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    assert main([*WORDS, "--box", "0:4,0:5,0:6", "--stage-to", "$TMPDIR", "--min-segment-size", "7"]) == 0
    (*paths, config, box, stage_to), (*_, changed, small, folder) = calls
    assert paths == ["a.h5:raw", "model", "b.h5:seg"]
    assert (config.min_segment_size, box, stage_to) == (1000, None, None)
    assert (changed.min_segment_size, small, folder) == (7, Box((0, 0, 0), (4, 5, 6)), "$TMPDIR")


def test_an_impossible_option_is_refused_before_the_stage(monkeypatch, capsys):
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: 1 / 0)
    assert main([*WORDS, "--seed-policy", "points"]) == 2
    assert "seed_policy points needs a CSV file" in capsys.readouterr().err
