"""Write balanced, shuffled, sharded TFRecord files of coordinates: every partition occurs equally often."""

from __future__ import annotations

import argparse

from ffn.config import RecordsConfig
from ffn.errors import ConfigError
from ffn.options import add_options, from_arguments, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn records``."""
    text = "volume names, as training will know them, and files from 'ffn coordinates'"
    parser.add_argument("--coordinates", required=True, nargs="+", metavar="NAME=FILE.h5", help=text)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of shards and index.json")
    parser.add_argument("--rng-seed", type=whole_number, default=1, metavar="INT", help="of all shuffles (default: 1)")
    text = "that write shards; 0 takes all cores of the job (default: 0)"
    parser.add_argument("--processes", type=whole_number, default=0, metavar="INT", help=text)
    add_options(parser, RecordsConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.sampling.records import records

    paths = parse_named_paths(arguments.coordinates)
    config = from_arguments(RecordsConfig, arguments)
    records(paths, arguments.out, config, arguments.rng_seed, arguments.processes)


def parse_named_paths(words: list[str]) -> dict[str, str]:
    """Split ``NAME=FILE.h5`` words.

    Raises
    ------
    ConfigError
        If one has another form or a name comes twice.
    """
    paths: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not (name and equals and path):
            raise ConfigError(f"--coordinates: {word!r} is not of the form NAME=FILE.h5")
        if name in paths:
            raise ConfigError(f"--coordinates: the volume name {name!r} is given twice, names must differ")
        paths[name] = path
    return paths
