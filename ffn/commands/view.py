"""The command `ffn view`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ffn.options import add_options, from_arguments
from ffn.viewing.config import ViewConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Open an export in Neuroglancer, or take a picture of it.

    Everything is served on the loopback interface of this machine, to those who know the link. To view it from another
    computer, choose a port, such as --port 8000, and forward it (the viewer) and the next one (the data), both to the
    same numbers:
    ssh -L 8000:127.0.0.1:8000 -L 8001:127.0.0.1:8001 HOST
    """
    parser.add_argument("path", metavar="PATH", help="an export, or a run such as results/demo")
    parser.add_argument("--screenshot", metavar="FILE.png", help="save a picture without opening a window, and exit")
    add_options(parser, ViewConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    from ffn.report.run_folder import find_export
    from ffn.viewing.viewer import view

    def announce(link: str) -> None:
        print(f"{link}\nWho knows this link can see the data. Ctrl-C ends the viewer.", flush=True)

    config = from_arguments(ViewConfig, arguments)
    view(find_export(Path(arguments.path), config.volume), config, announce, arguments.screenshot)
