"""Write everything that Neuroglancer needs to show a result. An interrupted export is resumed."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box, VoxelSize
from ffn.io.atomic import write_json
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of
from ffn.io.open import identity
from ffn.io.provenance import PROVENANCE_FILE
from ffn.io.store_names import JOBS, LAST
from ffn.io.volume import Volume, have_same_voxel_size, require_labels, voxel_size_of
from ffn.machine.limits import threads_here
from ffn.options import add_box_option, add_options, from_arguments
from ffn.provenance import fingerprint, provenance
from ffn.viewing.config import OF_TABLES, ExportConfig
from ffn.viewing.facts import write_facts
from ffn.viewing.inputs import Sources, open_parts, read_origins
from ffn.viewing.layers import (
    EDGES_SHADER,
    PROBABILITY_SHADER,
    errors_layer,
    image_layer,
    labels_layer,
    overlay_layer,
    points_layer,
    skeletons_layer,
    with_groups,
)
from ffn.viewing.links import write_links
from ffn.viewing.points import POINTS_FOLDER, write_points
from ffn.viewing.segment_table import require_writers
from ffn.viewing.segments import Segments
from ffn.viewing.state import LINKS_FOLDER, STATE_FILE, State, choose_segments, make_state
from ffn.viewing.tables import ExportTables, read_tables
from ffn.viewing.volumes import LABELS_LAYERS, Part, contrast
from ffn.viewing.work import PLACES, ExportWork, read_gathered

log = logging.getLogger(__name__)

# What `--step` takes: prepare the folder, write the first mips by several jobs, the others by one, then make pieces
# of meshes and skeletons. What is left is to join these, and to finish.
MIPS = tuple(f"mip{mip}" for mip in range(8))  # of 10¹⁵ voxels, 7 · 10⁷ are left to one job
STEPS = ("plan", *MIPS, "coarse", "pieces")
PLAN_FILE = ".plan.json"  # in an export: the key of what is in it
OURS = (STATE_FILE, PROVENANCE_FILE, PLAN_FILE, f"{STATE_FILE}.{JOBS}")  # any of them tells that a folder is an export
DEBUG_LAYERS = ("edges", "probability")  # optional: left out if they do not overlap the exported box


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
    group.add_argument("--origins", **many, metavar="FILE.h5", help="files of ffn segment: seeds and FOV counts")
    ids = "lines of base_id,group_id for --supervoxels if given, else for --segmentation"
    group.add_argument("--agglomeration", metavar="FILE.csv", help=ids)
    group.add_argument("--errors", metavar="FILE.json", help="scores of ffn evaluate; the worst errors get links")
    group.add_argument("--edges", metavar="VOLUME", help="detected membranes")
    group.add_argument("--probability", **many, metavar="VOLUME", help="FFN probabilities of all subvolumes")
    group.add_argument("--coordinates", metavar="FILE.h5", help="training coordinates")
    add_options(parser, ExportConfig)
    parser.set_defaults(function=_run)


def _run(arguments: argparse.Namespace) -> None:
    from ffn.viewing.inputs import Sources

    given: dict[str, Any] = {name: getattr(arguments, name) for name in Sources.__dataclass_fields__}
    given |= {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    sources = Sources(**given)
    config = from_arguments(ExportConfig, arguments)
    export(sources, arguments.out, config, arguments.box, job_of(arguments))


def export(
    sources: Sources,
    out: str | Path,
    config: ExportConfig,
    box: Box | None = None,
    job: Job = WHOLE,
) -> None:
    """Write an export folder.

    The state is written last; before, an export is not finished, and the same call resumes it.

    Parameters
    ----------
    sources : Sources
        What to export. Each volume becomes a folder with its name.
    out : path
        Folder to create, or an earlier export to replace.
    config : ExportConfig
        Encoding, meshes, skeletons, threads.
    box : Box, optional
        Part to export, full-volume voxels; default all. Each volume contributes the part that it covers.
    job : Job
        What to do of the `STEPS`, and of what comes after them; see `ffn.io.blocks`.

    Raises
    ------
    ExportError
        If no volume is given, a volume has an unusable type or does not overlap `box`, voxel sizes are missing or
        differ, or a table cannot be read. Also if `out` cannot be written, or is a folder that is not an export, or if
        an earlier step is missing.
    VolumeError
        If a block is missing.
    """
    require_writers(config.formats)
    _require_replaceable(Path(out))
    with contextlib.ExitStack() as stack:
        places = None if _begins(job) else read_gathered(Path(out), PLACES)
        volumes = {
            name: stack.enter_context(open_parts(name, specs, places)) for name, specs in sources.volumes.items()
        }
        parts = _plan(volumes, config, box)
        whole = Box.hull(part.box for part in parts.values())
        tables = read_tables(sources, whole, config) if job.writes else ExportTables()
        folder, key = Path(out), _key(parts, config, sources)
        with _writable(folder):
            _begin(folder, key, sources, job)
            work = ExportWork(folder, parts, config, key, config.threads or threads_here())
            _do_steps(work, sources, job)
            if job.writes:
                state = _write(folder, parts, tables, config, work)
                record = provenance("export", config.model_copy(update={"threads": 0}), box=whole, **sources.given)
                write_json(folder / PROVENANCE_FILE, record)
                write_json(folder / STATE_FILE, state)
                work.clear(job)
        if job.record_path:
            write_json(job.record_path, key)


def _key(parts: dict[str, Part], config: ExportConfig, sources: Sources) -> dict[str, Any]:
    """Return all that the blocks of an export depend on, but for the many files of subvolumes."""
    whole = Box.hull(part.box for part in parts.values())
    blocks = replace(sources, agglomeration=None, coordinates=None, errors=None)  # no block depends on these
    plan = fingerprint("export", config.model_copy(update=dict.fromkeys(OF_TABLES, 0)), box=whole, **blocks.given)
    few = [spec for specs in blocks.volumes.values() if len(specs) == 1 for spec in specs]
    return {**plan, "sources": _digest(vars(blocks)), "contents": _contents(few)}


@contextlib.contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise ExportError(f"{out}: cannot be written ({reason.strerror}). Choose another --out") from None


def _begin(folder: Path, key: dict[str, Any], sources: Sources, job: Job) -> None:
    """Empty the folder unless an export with this key was begun there; only the first job may."""
    if not _begins(job):
        if not _is_of(folder, key):
            raise ExportError(f"{folder}: has no begun export of these inputs and options. Run --step plan first")
        return
    blocks = replace(sources, agglomeration=None, coordinates=None, errors=None)
    key = {**key, "files": _contents(blocks.specs)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE_FILE).unlink(missing_ok=True)
    if _is_of(folder, key):
        log.info("%s: resuming an interrupted export", folder)
        return
    write_json(folder / PLAN_FILE, {})  # a killed wipe leaves an export of no plan
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != f"{STATE_FILE}.{JOBS}":
            shutil.rmtree(entry)
        elif entry.is_file() and entry.name != PLAN_FILE:
            entry.unlink()
    write_json(folder / PLAN_FILE, key)


def _is_of(folder: Path, key: dict[str, Any]) -> bool:
    """Whether an export with this key was begun in a folder."""
    try:
        return json.loads(json.dumps(key)).items() <= json.loads((folder / PLAN_FILE).read_text()).items()
    except (OSError, ValueError):
        return False


def _begins(job: Job) -> bool:
    return job.is_whole or job.step == STEPS[0]


def _digest(content: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for part in json.JSONEncoder(sort_keys=True).iterencode(content):  # not as a whole: there may be a million files
        digest.update(part.encode())
    return digest.hexdigest()


def _contents(specs: Iterable[str]) -> str:
    return _digest({spec: identity(spec) for spec in specs})


def _do_steps(work: ExportWork, sources: Sources, job: Job) -> None:
    """Do what a job has to do on blocks."""

    def does(step: str) -> bool:
        return job.is_whole or job.step == step

    if does(STEPS[0]):
        work.create(read_origins(sources.origins).seeds_zyx if sources.origins else None)
    for mip, step in enumerate(MIPS):
        if does(step):
            work.write_mip(mip, job)
    if does("coarse"):
        work.complete_mips()
        work.count()
    if does("pieces"):
        work.make_pieces(job)
        if job.finishes:
            work.sort_pieces()
    if does(LAST) or not job.step:
        work.join_pieces(job)


def _plan(volumes: dict[str, Volume], config: ExportConfig, box: Box | None) -> dict[str, Part]:
    """Check everything before anything is written."""
    if not volumes:
        raise ExportError("export: no volume is given, expected --image, --segmentation or --truth")
    voxel_size = _common_voxel_size(volumes)
    parts = {}
    for name, volume in volumes.items():
        place = _inside(volume, box, required=name not in DEBUG_LAYERS)
        part = Part(name, volume, place or volume.box, voxel_size)
        if name in LABELS_LAYERS:
            require_labels(volume)
        elif name == "probability" and volume.dtype != np.uint8:
            raise ExportError(f"{volume.name}: has type {volume.dtype}, expected uint8, as ffn segment writes it")
        else:
            part.encoding(config)
        if place is not None:
            parts[name] = part
    if not parts:
        raise ExportError(
            f"--box: {box} overlaps none of {', '.join(volumes)}, at least one is needed. Choose another box"
        )
    return parts


def _write(folder: Path, parts: dict[str, Part], tables: ExportTables, config: ExportConfig, work: ExportWork) -> State:
    """Write what is not of blocks but the state, which makes the export a finished one; return it."""
    lengths = work.finish()
    for name in (LINKS_FOLDER, POINTS_FOLDER):  # maybe of other tables
        shutil.rmtree(folder / name, ignore_errors=True)
    facts: dict[str, Segments] = {}
    for name, part in parts.items():
        if name in LABELS_LAYERS:
            counts = work.counts(name)
            write_facts(folder / name, part, counts, config, tables, lengths, parts)
            facts[name] = counts.segments
    whole = Box.hull(part.box for part in parts.values())
    voxel_size = next(iter(parts.values())).voxel_size_zyx_nm
    if len(tables.points):
        write_points(folder / POINTS_FOLDER, tables.points, tables.point_classes, whole, voxel_size)
    state = make_state(_layers(parts, facts, tables, config), whole, voxel_size)
    write_links(folder, state, tables.errors, facts, voxel_size)
    return state


def _layers(
    parts: dict[str, Part], facts: dict[str, Segments], tables: ExportTables, config: ExportConfig
) -> list[State]:
    """List the layers. Image and segmentation are visible at first, all others can be switched on."""
    layers = []
    if "image" in parts:
        layers.append(image_layer("image", contrast(parts["image"])))
    for name, segments in facts.items():
        layers += _labels_layers(parts[name], segments, tables, config)
    for name, shader in (("edges", EDGES_SHADER), ("probability", PROBABILITY_SHADER)):
        if name in parts:
            layers.append(overlay_layer(name, shader))
    if len(tables.points):
        layers.append(points_layer(POINTS_FOLDER))
    if tables.errors:
        layers.append(errors_layer(tables.errors))
    for layer in layers:
        if layer["name"] in ("truth", "supervoxels", "agglomerated") and "segmentation" in facts:
            layer["visible"] = False  # two colourings on top of each other are illegible
    return layers


def _labels_layers(part: Part, segments: Segments, tables: ExportTables, config: ExportConfig) -> Iterator[State]:
    """Yield the layer of some labels; for a segmentation also its agglomeration and its skeletons."""
    meshed = segments.voxels >= config.min_mesh_voxels
    chosen = choose_segments(segments.ids[meshed], segments.voxels[meshed], part.box.num_voxels)
    layer = labels_layer(part.name, chosen)
    has_groups = part.name == tables.base
    grouped = with_groups(layer, tables.groups, segments.ids) if has_groups else layer
    if part.name != "segmentation":
        yield grouped
        return
    yield layer
    if has_groups:
        yield {**grouped, "name": "agglomerated"}
    if config.skeleton_mip is not None:
        yield skeletons_layer(part.name)


def _common_voxel_size(volumes: dict[str, Volume]) -> VoxelSize:
    """Return the voxel size of the volumes that have one."""
    known = [volume for volume in volumes.values() if volume.voxel_size_zyx_nm is not None]
    if not known:
        names = ", ".join(volume.name for volume in volumes.values())
        raise ExportError(f"{names}: no voxel size found, one is needed. Ingest with --voxel-size Z Y X")
    if not all(have_same_voxel_size(volume, known[0]) for volume in known):
        sizes = ", ".join(f"{volume.voxel_size_zyx_nm} of {volume.name}" for volume in known)
        raise ExportError(f"export: voxel sizes differ: {sizes} (zyx, nm), expected one for all. Ingest again")
    return voxel_size_of(known[0])


def _inside(volume: Volume, box: Box | None, required: bool) -> Box | None:
    """Return the part of `box` that the volume covers; None if it covers none and is not required."""
    part = volume.box if box is None else volume.box.intersect(box)
    if not part.is_empty:
        return part
    if required:
        raise ExportError(
            f"{volume.name}: covers {volume.box}, expected an overlap with --box {box}. Choose another box"
        )
    log.info("%s: does not overlap %s, the layer is left out", volume.name, box)
    return None


def _require_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is not an export, such as a mistyped home folder."""
    is_empty = out.is_dir() and not any(out.iterdir())
    # One is enough: Snakemake deletes the state, its output, before it reruns an export.
    is_export = any((out / name).exists() for name in OURS)
    if out.exists() and not is_empty and not is_export:
        raise ExportError(f"{out}: is not an export, so it will not be replaced. Choose another --out")
