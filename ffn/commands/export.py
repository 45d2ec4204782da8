"""Write Neuroglancer volumes, meshes, skeletons and segment properties, and states that show them.

Repeating an interrupted export resumes it.
"""

from __future__ import annotations

import argparse
from typing import Any

from ffn.options import add_box_option, add_options, from_arguments
from ffn.viewing.config import ExportConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", metavar="VOLUME", help="raw image, uint8 or uint16")
    parser.add_argument("--segmentation", metavar="VOLUME", help="segmentation")
    parser.add_argument("--truth", metavar="VOLUME", help="labels of the ground truth")
    parser.add_argument("--supervoxels", metavar="VOLUME", help="segmentation before agglomeration")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to create")
    parser.add_argument("--check", action="store_true", help="read everything back with cloud-volume and compare")
    group = parser.add_argument_group("segment properties, and layers for debugging (hidden at first)")
    many: dict[str, Any] = {"nargs": "+", "default": ()}
    group.add_argument("--origins", **many, metavar="FILE.h5", help="files of ffn segment: seeds and FOV counts")
    ids = "lines of base_id,group_id for --supervoxels if given, else for --segmentation"
    group.add_argument("--agglomeration", metavar="FILE.csv", help=ids)
    group.add_argument("--errors", metavar="FILE.json", help="scores of ffn evaluate; the worst errors get links")
    group.add_argument("--edges", metavar="VOLUME", help="detected membranes")
    group.add_argument("--probability", **many, metavar="VOLUME", help="FFN probabilities of all subvolumes")
    group.add_argument("--coordinates", metavar="FILE.h5", help="training coordinates")
    add_options(parser, ExportConfig)


def run(arguments: argparse.Namespace) -> None:
    from ffn.viewing.export import export
    from ffn.viewing.inputs import Sources

    given: dict[str, Any] = {name: getattr(arguments, name) for name in Sources.__dataclass_fields__}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    sources = Sources(**given)
    export(sources, arguments.out, from_arguments(ExportConfig, arguments), arguments.box, arguments.check)
