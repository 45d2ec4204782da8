"""Copy images or labels from any supported format into the project's format, and check them.

A folder or URL can name its format: zarr://PATH, n5://PATH or precomputed://PATH.
"""

from __future__ import annotations

import argparse

from ffn.config import IngestConfig
from ffn.errors import ConfigError
from ffn.io.foreign import readable_formats
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", nargs="+", help=f"image or labels: {readable_formats()}")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="FILE.h5:DATASET", help="volume to write")
    add_options(parser, IngestConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.io.ingest import ingest

    if len(arguments.source) > 1:
        count, first = len(arguments.source), arguments.source[0]
        raise ConfigError(f"SOURCE: found {count} ({first} …), expected one. Put a glob in quotes: 'stack/*.png'")
    ingest(arguments.source[0], arguments.out, from_arguments(IngestConfig, arguments), arguments.box)
