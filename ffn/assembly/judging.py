"""Judge decision points one after the other, and go on where a killed job stopped."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path

from ffn.assembly.contacts import Contact
from ffn.assembly.merge_graph import MergeEdge, MergeGraphError, parse_edge
from ffn.assembly.resegment import Surroundings, resegmented
from ffn.geometry import zyx
from ffn.inference.lanes import Lanes
from ffn.io import atomic
from ffn.machine.limits import threads_here
from ffn.model.store import Model
from ffn.progress import track

log = logging.getLogger(__name__)


def judged(partial: Path, head: str, candidates: list[Contact], around: Surroundings, lanes: Lanes) -> list[str]:
    """Judge the candidates that a killed job did not get to; return the lines of all edges."""
    lines = _resumed(partial, head, candidates)
    with open(partial, "a") as file:
        rest, config = candidates[len(lines) :], around.config
        found = resegmented(around, rest, lanes, config.threads or threads_here())
        for contact, evidence in track(found, len(rest), "agglomerate", "point"):
            lines.append(MergeEdge.of(contact, evidence, evidence.score(config)).row())
            file.write(lines[-1] + "\n")
            file.flush()
    return lines


def with_smaller_steps(around: Surroundings, own: Model) -> Surroundings | None:
    """Return the surroundings with the steps of the model where these are smaller; None if they are not on any axis."""
    used = around.network.model.config.deltas_zyx
    deltas_zyx = zyx(map(min, used, own.config.deltas_zyx))
    if deltas_zyx == used:
        return None
    model = replace(own, config=own.config.model_copy(update={"deltas_zyx": deltas_zyx}))
    return replace(around, network=replace(around.network, model=model))


def judged_again(
    partial: Path, head: str, lines: list[str], candidates: list[Contact], finer: Surroundings
) -> list[str]:
    """Judge again, in smaller steps, what large ones leave open; return all lines, with the higher score of both."""
    edges = [parse_edge(line, "") for line in lines]
    left = [n for n, edge in enumerate(edges) if edge.evidence.is_open(finer.config)]
    if not left:
        return lines  # an engine takes seconds to start
    found = judged(partial, head, [candidates[n] for n in left], finer, finer.open_lanes(len(left)))
    better = {n: line for n, line in zip(left, found, strict=True) if parse_edge(line, "").score > edges[n].score}
    log.info("%d decision points judged again in smaller steps, %d with a higher score", len(left), len(better))
    return [better.get(n, line) for n, line in enumerate(lines)]


def _resumed(partial: Path, head: str, expected: list[Contact]) -> list[str]:
    """Return the finished lines of a killed job with the same configuration and inputs; drop all else from its file."""
    partial.parent.mkdir(parents=True, exist_ok=True)
    text = partial.read_text(errors="replace") if partial.exists() else ""
    whole = text[len(head) :].rpartition("\n")[0] if text.startswith(head) else ""
    lines = whole.split("\n") if whole else []
    known = list(itertools.takewhile(_is_of, zip(lines, expected, strict=False)))
    lines = [line for line, _ in known]
    if lines:
        log.info("%s: resuming after %d decision points", partial, len(lines))
    write_lines(partial, head, lines)
    return lines


def write_lines(path: str | Path, head: str, lines: list[str]) -> None:
    """Write a file of edges at once."""
    atomic.write_text(path, head + "".join(line + "\n" for line in lines))


def _is_of(finished: tuple[str, Contact]) -> bool:
    """Whether a line is the complete edge of the expected contact."""
    line, contact = finished
    try:
        edge = parse_edge(line, "")
    except MergeGraphError:
        return False
    place = (edge.segment_a, edge.segment_b, (edge.z, edge.y, edge.x), edge.overlap_voxels, edge.contact_faces)
    return place == (*contact.pair, contact.position_zyx, contact.overlap, contact.faces)
