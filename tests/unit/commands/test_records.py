import pytest

from ffn.cli import main
from ffn.commands.records import parse_named_paths, parse_weights
from ffn.config import RecordsConfig
from ffn.errors import ConfigError


def test_options_reach_the_stage(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.sampling.records.records", lambda *given: calls.append(given))
    words = ["records", "--coordinates", "a=1.h5", "b=x=2.h5", "--out", "records"]
    assert main(words) == 0
    assert main([*words, "--max-records", "none", "--rng-seed", "5", "--processes", "2", "--weight", "a=0.5"]) == 0
    paths = {"a": "1.h5", "b": "x=2.h5"}
    assert calls == [
        (paths, "records", RecordsConfig(), 1, 0, {}),
        (paths, "records", RecordsConfig(max_records=None), 5, 2, {"a": 0.5}),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.h5"], "--coordinates: found 'a.h5', expected NAME=FILE.h5"),
        (["=a.h5"], "--coordinates: found '=a.h5', expected NAME=FILE.h5"),
        (["a=1.h5", "a=2.h5"], "--coordinates: found the volume 'a' twice, expected different names"),
    ],
)
def test_malformed_coordinates_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_named_paths(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "--weight: found 'a', expected NAME=WEIGHT"),
        (["a=heavy"], "--weight: found 'heavy' for 'a', expected a positive number"),
        (["a=1", "a=2"], "--weight: found the volume 'a' twice"),
    ],
)
def test_malformed_weights_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        parse_weights(words)
