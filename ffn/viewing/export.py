"""Write everything that Neuroglancer needs to show a result. An interrupted export is resumed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io import atomic
from ffn.io.blocks import WHOLE, Job, add_job_options, job_of
from ffn.io.open import identity
from ffn.io.store_names import JOBS
from ffn.options import add_box_option, add_options, from_arguments
from ffn.provenance import fingerprint, provenance
from ffn.viewing import STATE_FILE, STEPS
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import Sources, open_volumes, read_errors
from ffn.viewing.precomputed import plan_layers
from ffn.viewing.segments import Segments, columns_of, write_segment_properties, write_table
from ffn.viewing.state import write_links
from ffn.viewing.work import ExportWork

PROVENANCE_FILE = "provenance.json"
OURS = (STATE_FILE, PROVENANCE_FILE, f"{STATE_FILE}.{JOBS}")  # any of them tells that a folder is an export


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Write Neuroglancer volumes, meshes, skeletons and segment properties, and states that show them.

    Repeating an interrupted export resumes it.

    example:
      ffn export --image raw.zarr --segmentation seg.zarr --out precomputed/
    """
    parser.add_argument("--image", metavar="VOLUME", help="raw image, uint8 or uint16")
    parser.add_argument("--segmentation", metavar="VOLUME", help="segmentation")
    parser.add_argument("--truth", metavar="VOLUME", help="labels of the ground truth")
    parser.add_argument("--supervoxels", metavar="VOLUME", help="segmentation before agglomeration")
    add_box_option(parser)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to create")
    add_job_options(parser, STEPS)
    parser.add_argument("--errors", metavar="FILE.json", help="scores of ffn evaluate; the worst errors get links")
    add_options(parser, ExportConfig)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    sources = Sources(**{name: getattr(arguments, name) for name in Sources.__dataclass_fields__})
    export(sources, arguments.out, from_arguments(ExportConfig, arguments), arguments.box, job_of(arguments))


def export(sources: Sources, out: str | Path, config: ExportConfig, box: Box | None = None, job: Job = WHOLE) -> None:
    """Write an export folder, whose state is written last; an export without it is not finished, and is resumed.

    Each volume becomes a folder with its name, and contributes the part of the box (full-volume voxels) that it covers.
    An earlier export is replaced.

    Raises
    ------
    ExportError
        If no volume is given, a volume has an unusable type or does not overlap `box`, voxel sizes are missing or
        differ, or the scores cannot be read. Also if `out` cannot be written, is a folder that is not an export, or an
        earlier step is missing.
    VolumeError
        If a block is missing.
    """
    folder = Path(out)
    _require_replaceable(folder)
    errors = read_errors(sources.errors) if job.writes and sources.errors else []
    contents = {name: identity(spec) for name, spec in sources.volumes.items()}
    key = {**fingerprint("export", config, box=box, **sources.volumes), "contents": contents}
    with open_volumes(sources) as volumes, atomic.named(folder):
        work = ExportWork(folder, plan_layers(folder, volumes, config, box), config, key, job)
        work.begin()
        found = work.run()
        if job.writes and found is not None:
            _write(work, found, errors, sources)
    if job.record_path:
        atomic.write_json(job.record_path, key)


def _require_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is not an export, such as a mistyped home folder."""
    is_empty = out.is_dir() and not any(out.iterdir())
    # One is enough: Snakemake deletes the state, its output, before it reruns an export.
    if out.exists() and not is_empty and not any((out / name).exists() for name in OURS):
        raise ExportError(f"{out}: is not an export, so it will not be replaced. Choose another --out")


def _write(
    work: ExportWork, found: Mapping[str, Segments], errors: Sequence[Mapping[str, Any]], sources: Sources
) -> None:
    """Write tables and links, and the state last."""
    folder, layers, config = work.folder, work.layers, work.config
    for name, segments in found.items():
        lengths = work.lengths() if name == "segmentation" else None
        columns = list(columns_of(segments, layers[name].voxel_size_zyx_nm, lengths))
        write_segment_properties(folder / name, segments, columns)
        write_table(folder / f"{name}.csv", segments, columns)
    state = write_links(folder, layers, found, errors, config)
    whole = Box.hull(layer.box for layer in layers.values())
    record = provenance("export", config.model_copy(update={"threads": 0}), box=whole, **sources.given)
    atomic.write_json(folder / PROVENANCE_FILE, record)
    atomic.write_json(folder / STATE_FILE, state)
    work.clear()
