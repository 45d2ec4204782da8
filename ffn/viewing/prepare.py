"""The first step of an export: its key and its folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ffn.errors import ExportError
from ffn.geometry import Box
from ffn.io.atomic import write_text
from ffn.io.blocks import WHOLE, Job
from ffn.io.open import identity
from ffn.io.provenance import PROVENANCE_FILE
from ffn.io.store_names import JOBS, jobs_folder
from ffn.io.tables import Tables, read_tables, write_tables
from ffn.provenance import fingerprint
from ffn.viewing import PLAN
from ffn.viewing.config import ExportConfig
from ffn.viewing.inputs import Sources, open_volumes, read_origins
from ffn.viewing.segments import seed_tables
from ffn.viewing.state import STATE_FILE
from ffn.viewing.volumes import plan_parts
from ffn.viewing.work import ExportWork

OURS = (STATE_FILE, PROVENANCE_FILE, f"{STATE_FILE}.{JOBS}")  # any of them tells that a folder is an export


def begin(
    folder: Path, sources: Sources, config: ExportConfig, box: Box | None, job: Job
) -> tuple[Tables, dict[str, Any]]:
    """Prepare the folder if the job does that; return the tables of this step, and the key of all blocks."""
    _require_replaceable(folder)
    jobs, of_blocks = jobs_folder(str(folder / STATE_FILE)), _of_blocks(sources)
    few = [spec for specs in of_blocks.volumes.values() if len(specs) == 1 for spec in specs]
    inputs = {"sources": _digest(vars(of_blocks)), "contents": _contents(few)}  # many subvolumes are in the tables
    key = {**fingerprint("export", config, box=box, **of_blocks.given), **inputs}
    if job.is_whole or job.step == PLAN:
        _prepare(folder, sources, config, box, key)
    planned = read_tables(jobs / PLAN, key)
    if planned is None:
        raise ExportError(f"{folder}: has no begun export of these inputs and options. Run --step {PLAN} first")
    return planned, {**key, "plan": planned.digest}


def _prepare(folder: Path, sources: Sources, config: ExportConfig, box: Box | None, key: Mapping[str, Any]) -> None:
    """Check everything; empty the folder unless it has an export of the same; write the metadata of all volumes.

    The tables of this step spare the other jobs from opening all outputs of subvolumes.
    """
    jobs = jobs_folder(str(folder / STATE_FILE))
    with open_volumes(sources) as volumes:
        parts = plan_parts(volumes, config, box)
        bounds = getattr(volumes.get("probability"), "bounds", np.empty((0, 2, 3), np.int64))
        seeds = seed_tables(read_origins(sources.origins).seeds_zyx)
        contents = _contents(_of_blocks(sources).specs)
        text, mark = json.dumps({**key, "contents": contents}), jobs / PLAN / "key.json"  # Snakemake removes the tables
        if not mark.exists() or mark.read_text() != text:
            _empty(folder, jobs, mark)
            write_text(mark, text)
        (folder / STATE_FILE).unlink(missing_ok=True)  # the export is not finished any more
        ExportWork(folder, parts, config, key, WHOLE).create()
    digest = np.frombuffer(bytes.fromhex(contents), np.uint8)
    write_tables(jobs / PLAN, {**seeds, "bounds": bounds, "contents": digest}, key)


def _empty(folder: Path, jobs: Path, mark: Path) -> None:
    """Remove an earlier export and the logs of its jobs, but not Snakemake's records of them."""
    mark.unlink(missing_ok=True)  # first: after a kill, nothing is taken for a whole export
    for path in jobs.rglob("*"):
        if path.is_file() and not path.match("*-of-*.json"):
            path.unlink()
    for path in folder.iterdir() if folder.exists() else ():
        if path.is_dir() and path != jobs:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()


def _require_replaceable(out: Path) -> None:
    """Refuse to replace a folder that is not an export, such as a mistyped home folder."""
    is_empty = out.is_dir() and not any(out.iterdir())
    # One is enough: Snakemake deletes the state, its output, before it reruns an export.
    if out.exists() and not is_empty and not any((out / name).exists() for name in OURS):
        raise ExportError(f"{out}: is not an export, so it will not be replaced. Choose another --out")


def _of_blocks(sources: Sources) -> Sources:
    """Leave out the tables that no block depends on."""
    return replace(sources, agglomeration=None, coordinates=None, errors=None)


def _digest(content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for part in json.JSONEncoder(sort_keys=True).iterencode(content):  # not as a whole: there may be a million files
        digest.update(part.encode())
    return digest.hexdigest()


def _contents(specs: Iterable[str]) -> str:
    return _digest({spec: identity(spec) for spec in specs})
