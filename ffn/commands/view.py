"""Open an export in Neuroglancer, or take a picture of it.

Everything is served on this machine's loopback interface. To look at it from another computer, choose a
port and forward it (the link) and the next one (the data), with --port 8000:
ssh -L 8000:127.0.0.1:8000 -L 8001:127.0.0.1:8001 HOST
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ffn.options import add_options, from_arguments
from ffn.viewing.config import ViewConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``ffn view``."""
    parser.add_argument("path", metavar="PATH", help="an export, or a run such as results/demo")
    parser.add_argument("--screenshot", metavar="FILE.png", help="render without a screen, save a picture and exit")
    add_options(parser, ViewConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the stage."""
    from ffn.report.run_folder import find_export
    from ffn.viewing.viewer import view

    def announce(link: str) -> None:
        print(f"{link}\nCtrl-C ends the viewer.", flush=True)

    config = from_arguments(ViewConfig, arguments)
    view(find_export(Path(arguments.path), config.volume), config, announce, arguments.screenshot)
