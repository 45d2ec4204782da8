"""`ffn queue`: list the places of a run that people should look at."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.errors import ConfigError
from ffn.options import whole_number

if TYPE_CHECKING:
    from ffn.viewing.queue import QueueInputs
    from ffn.viewing.trials import TrialInputs

log = logging.getLogger(__name__)

MOST = 200  # places to list; our choice: a day of one person


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """List the places of a run where an answer is worth most, without a truth: RUN/agglomeration/VOLUME/queue.csv.

    These are contacts of two objects, and contacts that hold one object together, each with the probability that the
    present answer is wrong, and what the other one would change; also objects that end inside the volume, and the
    largest ones. Answers in files of corrections count, and the probabilities are refitted to them. 'ffn view RUN
    --link queue-001' shows a place, 'ffn view RUN --queue answers.csv' asks about one after the other.

    example:
      ffn queue results/demo
    """
    parser.add_argument("run_folder", metavar="RUN", help="folder of a run with agglomerate.enabled")
    parser.add_argument("--volume", metavar="NAME", help="volume of the run; default: its only one")
    text = "files of corrections with answers, of any number of people; those of the run always count"
    parser.add_argument("--corrections", nargs="+", default=(), metavar="FILE.csv", help=text)
    parser.add_argument("--most", type=whole_number, default=MOST, help="places to list (default: %(default)d)")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from ffn.assembly.given import read_corrections
    from ffn.io import atomic
    from ffn.viewing import LINKS_FOLDER
    from ffn.viewing.queue import Queue, named, places_text
    from ffn.viewing.state import load_state

    for path in arguments.corrections:
        read_corrections(path)  # all exist
    inputs = queue_inputs(arguments.run_folder, arguments.volume, arguments.corrections)
    queue, whole, links = Queue(inputs), load_state(inputs.export), inputs.export / LINKS_FOLDER
    places = queue.places(arguments.most)
    for earlier in links.glob("queue-*.json"):
        earlier.unlink()
    for name, place in named(places).items():
        atomic.write_json(links / f"{name}.json", queue.state(whole, place))
    out = Path(inputs.mapping).with_name("queue.csv")
    atomic.write_text(out, places_text(places))
    log.info("%s: %d places, %d answers so far", out, len(places), len(queue.answers))


def queue_inputs(run_folder: str, volume: str | None, corrections: Sequence[str]) -> QueueInputs:
    """Find the files of a run."""
    from ffn.assembly.given import GROWN, read_corrections
    from ffn.geometry import cut
    from ffn.io.open import open_segmentation
    from ffn.report.run_folder import find_export
    from ffn.viewing.queue import QueueInputs
    from ffn.workflow.paths import RunPaths, finished

    paths = RunPaths(run_folder)
    run = paths.read_config()
    if run is None or not run.agglomerate.enabled:
        raise ConfigError(f"{run_folder}: has no agglomeration graph, expected a run with agglomerate.enabled")
    export = find_export(Path(run_folder), volume, [name for name, each in run.volumes.items() if each.is_segmented])
    name = export.name
    own, cuts = run.volumes[name].corrections, paths.of("cut", volume=name)
    if own == RunPaths(f"results/{run.run}").corrections(name):
        own = os.path.abspath(paths.corrections(name))  # of ffn correct: with the run, also where that was moved
    given = [*corrections, *([_of_project(run_folder, own)] if own else [])]
    has_cuts = own is not None and any(each.action in GROWN for each in read_corrections(given[-1]))
    segmentation = paths.base(run, volume=name)
    with open_segmentation(segmentation) as base:  # graphs of another segment_box lie there, too
        boxes = cut(base.box, run.agglomerate.job_size_zyx)
    graphs = (paths.of("agglomerate", volume=name, subvolume=box.stem) for box in boxes)
    return QueueInputs(
        export=export,
        segmentation=segmentation,
        graphs=list(map(str, finished(graphs))),
        mapping=paths.of("merge", "mapping", volume=name),
        answers=tuple(dict.fromkeys(given)),
        cuts=cuts if has_cuts and os.path.exists(cuts) else None,
        has_affinities=run.affinities.enabled,
    )


def trial_inputs(run_folder: str, volume: str | None) -> TrialInputs:
    """Find the network of a run and what it works on, as the rule `cut` has them."""
    from ffn.inference.inputs import AgglomerateInputs
    from ffn.viewing.trials import TrialInputs
    from ffn.workflow.models import Models
    from ffn.workflow.paths import RunPaths

    inputs, paths = queue_inputs(run_folder, volume, ()), RunPaths(os.path.abspath(run_folder))
    run, name = paths.read_config(), inputs.export.name
    assert run is not None
    run = run.model_copy(update={"init": run.init and _of_project(run_folder, run.init)})
    flood = AgglomerateInputs(
        image=paths.of("ingest", "image", volume=name),
        model=Models(run, paths, False).used,
        normalization=paths.of("normalize", volume=name),
        masks=tuple(
            mask.model_copy(update={"path": mask.path and _of_project(run_folder, mask.path)})
            for mask in run.volumes[name].masks
        ),
        machine=paths.machine,
        segmentation=inputs.segmentation,
    )
    return TrialInputs(flood, run.agglomeration, inputs.cuts)


def _of_project(run_folder: str, path: str) -> str:
    """Return a path of the configuration of a run, which is relative to the folder that ``results`` is in."""
    return path if "://" in path else str(Path(os.path.abspath(run_folder)).parent.parent / path)
