"""Write Neuroglancer volumes and meshes, and a state that shows them."""

from __future__ import annotations

import argparse

from ffn.config import ExportConfig
from ffn.options import add_box_option, add_options, from_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn export``."""
    parser.add_argument("--image", metavar="VOLUME", help="electron microscopy, uint8 or uint16")
    parser.add_argument("--segmentation", metavar="VOLUME", help="segments")
    parser.add_argument("--truth", metavar="VOLUME", help="true labels")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to make")
    add_options(parser, ExportConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.viewing.export import Sources, export

    sources = Sources(arguments.image, arguments.segmentation, arguments.truth)
    export(sources, arguments.out, from_arguments(ExportConfig, arguments), arguments.box)
