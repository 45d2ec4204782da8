"""Write balanced, shuffled, sharded TFRecord files of coordinates: every partition occurs equally often."""

from __future__ import annotations

import argparse

from ffn.config import RecordsConfig
from ffn.errors import ConfigError
from ffn.options import add_options, from_arguments, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "volume names for training, and files from 'ffn coordinates'"
    parser.add_argument("--coordinates", required=True, nargs="+", metavar="NAME=FILE.h5", help=text)
    text = "how often a voxel of this volume is drawn, relative to other volumes (default: 1); can be repeated"
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=WEIGHT", help=text)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of shards and index.json")
    parser.add_argument(
        "--rng-seed", type=whole_number, default=1, metavar="INT", help="seed of all shuffles (default: 1)"
    )
    text = "processes that write shards; 0 takes all cores of the job (default: 0)"
    parser.add_argument("--processes", type=whole_number, default=0, metavar="INT", help=text)
    add_options(parser, RecordsConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.sampling.records import records

    paths = parse_named_paths(arguments.coordinates)
    config = from_arguments(RecordsConfig, arguments)
    weights = parse_weights(arguments.weight)
    records(paths, arguments.out, config, arguments.rng_seed, arguments.processes, weights)


def parse_named_paths(words: list[str]) -> dict[str, str]:
    """Split ``NAME=FILE.h5`` words.

    Raises
    ------
    ConfigError
        If a word has another form or a name is repeated.
    """
    return _parse_named("--coordinates", words, "FILE.h5")


def parse_weights(words: list[str]) -> dict[str, float]:
    """Split ``NAME=WEIGHT`` words.

    Raises
    ------
    ConfigError
        If a word has another form or a name is repeated.
    """
    weights = {}
    for name, text in _parse_named("--weight", words, "WEIGHT").items():
        try:
            weights[name] = float(text)
        except ValueError:
            raise ConfigError(f"--weight: found {text!r} for {name!r}, expected a positive number") from None
    return weights


def _parse_named(option: str, words: list[str], value_name: str) -> dict[str, str]:
    """Return the values of ``NAME=VALUE`` words by name."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option}: found {word!r}, expected NAME={value_name}")
        if name in values:
            raise ConfigError(f"{option}: found the volume {name!r} twice, expected different names")
        values[name] = value
    return values
