"""Write everything that Neuroglancer needs to show a result. An interrupted export is resumed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io.atomic import write_json
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of
from ffn.io.provenance import PROVENANCE_FILE
from ffn.io.tables import Tables
from ffn.options import add_box_option, add_options, from_arguments
from ffn.provenance import provenance
from ffn.viewing import MIPS, PLAN, STEPS
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import ExportTables, Sources, open_volumes, tables_of
from ffn.viewing.layers import write_links
from ffn.viewing.prepare import begin
from ffn.viewing.properties import require_writers, write_facts
from ffn.viewing.segments import Counts
from ffn.viewing.state import STATE_FILE
from ffn.viewing.volumes import plan_parts
from ffn.viewing.work import ExportWork


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write Neuroglancer volumes, meshes, skeletons and segment properties, and states that show them.

    Repeating an interrupted export resumes it.
    """
    parser.add_argument("--image", metavar="VOLUME", help="raw image, uint8 or uint16")
    parser.add_argument("--segmentation", metavar="VOLUME", help="segmentation")
    parser.add_argument("--truth", metavar="VOLUME", help="labels of the ground truth")
    parser.add_argument("--supervoxels", metavar="VOLUME", help="segmentation before agglomeration")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to create")
    add_job_options(parser, STEPS)
    group = parser.add_argument_group("segment properties, and layers for debugging (hidden at first)")
    many: dict[str, Any] = {"nargs": "+", "default": ()}
    group.add_argument("--origins", **many, metavar="STORE", help="outputs of ffn segment: seeds and FOV counts")
    ids = "lines of base_id,group_id for --supervoxels if given, else for --segmentation"
    group.add_argument("--agglomeration", metavar="FILE.csv", help=ids)
    group.add_argument("--errors", metavar="FILE.json", help="scores of ffn evaluate; the worst errors get links")
    group.add_argument("--edges", metavar="VOLUME", help="detected membranes")
    group.add_argument("--probability", **many, metavar="VOLUME", help="FFN probabilities of all subvolumes")
    group.add_argument("--coordinates", metavar="FILE.h5", help="training coordinates")
    add_options(parser, ExportConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    given: dict[str, Any] = {name: getattr(arguments, name) for name in Sources.__dataclass_fields__}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    config = from_arguments(ExportConfig, arguments)
    export(Sources(**given), arguments.out, config, arguments.box, job_of(arguments))


def export(sources: Sources, out: str | Path, config: ExportConfig, box: Box | None = None, job: Job = WHOLE) -> None:
    """Write an export folder, whose state is written last; an export without it is not finished, and is resumed.

    Parameters
    ----------
    sources : Sources
        What to export. Each volume becomes a folder with its name.
    out : path
        Folder to create, or an earlier export to replace.
    config : ExportConfig
        Encoding, meshes and skeletons, threads.
    box : Box, optional
        Part to export, full-volume voxels; default all. Each volume contributes the part that it covers.
    job : Job
        What to do of the `STEPS`, and of the last one; see `ffn.io.blocks`.

    Raises
    ------
    ExportError
        If no volume is given, a volume has an unusable type or does not overlap `box`, voxel sizes are missing or
        differ, or a table cannot be read. Also if `out` cannot be written, is a folder that is not an export, or an
        earlier step is missing.
    VolumeError
        If a block is missing.
    """
    require_writers(config.formats)
    folder = Path(out)
    tables = tables_of(sources) if job.writes else ExportTables()
    try:
        planned, key = begin(folder, sources, config, box, job)
        with open_volumes(sources, planned.read("bounds")) as volumes:
            work = ExportWork(folder, plan_parts(volumes, config, box), config, key, job, planned)
            counted = _do_blocks(work)
            if job.writes and counted is not None:
                _write(work, work.facts(counted), tables, sources)
        if job.record_path:
            write_json(job.record_path, key)
    except OSError as reason:
        raise ExportError(f"{out}: cannot be written ({reason.strerror}). Choose another --out") from None


def _do_blocks(work: ExportWork) -> Tables | None:
    """Do the steps of a job; return the counts if it does the last one."""
    if work.job.step in MIPS:
        work.write_mip(MIPS.index(work.job.step))
    if work.job.step in (PLAN, *MIPS):
        return None
    counted = work.count()
    pieces = None if counted is None else work.pieces(counted)
    if pieces is not None:
        work.join(pieces)
    return counted


def _write(work: ExportWork, counts: Mapping[str, Counts], tables: ExportTables, sources: Sources) -> None:
    """Write metadata, tables and links, and the state last."""
    folder, parts, config = work.folder, work.parts, work.config
    work.finish_metadata()
    write_facts(folder, parts, counts, tables, work.lengths(), config.formats)
    state = write_links(folder, parts, {name: each.segments for name, each in counts.items()}, tables, config)
    whole = Box.hull(part.box for part in parts.values())
    record = provenance("export", config.model_copy(update={"threads": 0}), box=whole, **sources.given)
    write_json(folder / PROVENANCE_FILE, record)
    write_json(folder / STATE_FILE, state)
    work.clear()
