import pytest

from ffn.cli import main
from ffn.synthetic.config import SynthConfig

WORDS = ["synth", "--out-image", "raw.h5:raw", "--out-labels", "labels.h5:labels"]


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.synthetic.write.synth", lambda *given: calls.append(given))
    assert main(WORDS) == 0
    assert main([*WORDS, "--shape", "16", "20", "24", "--voxel-size", "20", "10", "12", "--rng-seed", "7"]) == 0
    config = SynthConfig(shape_zyx=(16, 20, 24), voxel_size_zyx_nm=(20, 10, 12))
    assert calls == [
        ("raw.h5:raw", "labels.h5:labels", SynthConfig(), 1),
        ("raw.h5:raw", "labels.h5:labels", config, 7),
    ]


def test_the_random_seed_is_a_whole_number(capsys):
    with pytest.raises(SystemExit):
        main([*WORDS, "--rng-seed", "1.5"])
    assert "'1.5' is not a whole number" in capsys.readouterr().err
