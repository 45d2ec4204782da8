"""A folder that takes long to fill. Others see it complete or not at all; a repeated call resumes the work."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ffn.errors import ExportError
from ffn.io.atomic import atomic_path, write_json
from ffn.machine.runlock import LOCK_FILE, take_lock

log = logging.getLogger(__name__)

PLAN_FILE = ".plan.json"
FINISHED_FILE = ".finished.json"  # says of what, before records are removed; a killed removal repeats nothing


@contextlib.contextmanager
def resumable_folder(out: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """Yield a hidden folder next to `out`, which replaces `out` when the block ends without an error.

    Parameters
    ----------
    out : Path
        Final folder.
    plan : dict
        Everything that determines the content, ready for JSON.

    Yields
    ------
    Path
        The folder: empty, or as a killed call with the same plan left it.

    Raises
    ------
    ConfigError
        If another process is filling the folder.
    ExportError
        If the block raises it: then the content is useless, and the next call starts over.
    """
    partial = out.with_name(f".{out.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with take_lock(partial) as lock:
        _keep_if_same(partial, plan)
        try:
            yield partial
        except ExportError:
            (partial / PLAN_FILE).unlink()
            raise
        with atomic_path(out) as temporary:
            partial.rename(temporary)  # with the lock in it, so nobody else gets the folder
            lock.close()
            for name in (PLAN_FILE, LOCK_FILE, FINISHED_FILE):
                (temporary / name).unlink(missing_ok=True)


@contextlib.contextmanager
def shared_folder(out: Path, plan: dict[str, Any], begins: bool) -> Iterator[Path]:
    """Yield the folder `out` itself, which several jobs fill.

    Parameters
    ----------
    out, plan
        As in `resumable_folder`; jobs but the first may leave out members of the plan.
    begins : bool
        Whether this is the first job, which removes what is of another plan.

    Raises
    ------
    ExportError
        If another job than the first finds another plan.
    """
    if begins:
        out.mkdir(parents=True, exist_ok=True)
        _keep_if_same(out, plan)
    elif not _is_of(out, plan):
        raise ExportError(
            f"{out}: has no begun export of these inputs and options, expected one. Run --job plan-finish"
        )
    yield out


def is_finished(folder: Path, made_of: dict[str, Any]) -> bool:
    """Whether a folder was finished of this; if not, forget that it was finished of anything."""
    if _is_of(folder, made_of, FINISHED_FILE):
        return True
    (folder / FINISHED_FILE).unlink(missing_ok=True)
    return False


def _is_of(folder: Path, plan: dict[str, Any], name: str = PLAN_FILE) -> bool:
    """Whether a folder was started with this plan."""
    try:
        return json.loads(json.dumps(plan)).items() <= json.loads((folder / name).read_text()).items()
    except (OSError, ValueError):
        return False


def _keep_if_same(folder: Path, plan: dict[str, Any]) -> None:
    """Empty the folder unless it was started with the same plan."""
    if _is_of(folder, plan):
        log.info("%s: resuming an interrupted export", folder)
        return
    write_json(folder / PLAN_FILE, {})  # a killed wipe leaves an export of no plan
    for entry in folder.iterdir():
        if entry.name in (LOCK_FILE, PLAN_FILE):
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    write_json(folder / PLAN_FILE, plan)
