"""`ffn view`: show an export or stores in Neuroglancer."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from ffn.commands.queue import queue_inputs, trial_inputs
from ffn.errors import ExportError, FfnError
from ffn.io.store_names import split_store
from ffn.options import add_options, from_arguments
from ffn.viewing.config import ViewConfig

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Open an export or stores in Neuroglancer, or take a picture of them.

    Everything is served on the loopback interface of this machine, to anybody who has the link. To view it from another
    computer, choose a port, such as --port 8000, and forward it to the same number: ssh -L 8000:127.0.0.1:8000 HOST

    example:
      ffn view results/demo --screenshot neurons.png
    """
    text = "an export, a run such as results/demo, or stores NAME.zarr that lie on this machine, the last one on top"
    parser.add_argument("path", nargs="+", metavar="PATH", help=text)
    parser.add_argument("--screenshot", metavar="FILE.png", help="save a picture without opening a window, and exit")
    add_options(parser, ViewConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from ffn.report.run_folder import find_export
    from ffn.viewing.viewer import view, view_stores
    from ffn.workflow.paths import RunPaths

    def announce(link: str) -> None:
        print(f"{link}\nAnyone with this link can see the data. Ctrl-C ends the viewer.", flush=True)

    config = from_arguments(ViewConfig, arguments)
    if all(map(split_store, arguments.path)):
        view_stores(arguments.path, config, announce, arguments.screenshot)
        return
    if len(arguments.path) > 1:
        found = f"found {len(arguments.path)} paths, expected one run or export, or stores NAME.zarr"
        raise ExportError(f"{arguments.path[1]}: {found}")
    path, queue, trials = arguments.path[0], None, None
    if config.queue:
        from ffn.viewing.queue import Queue

        queue = Queue(queue_inputs(path, config.volume, config.queue))
    export = find_export(Path(path), config.volume)
    is_run = config.corrections is not None and export != Path(path) and Path(RunPaths(path).config).is_file()
    if is_run:
        try:
            trials = trial_inputs(path, config.volume)
        except FfnError as reason:
            log.warning("cuts and traces are drawn without a preview: %s", reason)
    view(export, config, announce, arguments.screenshot, queue, trials)
