"""A folder that takes long to fill. Others see it complete or not at all; a repeated call resumes the work."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ffn.errors import ExportError
from ffn.io.atomic import atomic_path

log = logging.getLogger(__name__)

PLAN_FILE = ".plan.json"
LOCK_FILE = ".lock"


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
    ExportError
        If another process is filling the folder. If the block itself raises an `ExportError`, its content is useless,
        and the next call starts over.
    """
    partial = out.with_name(f".{out.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _lock(partial / LOCK_FILE, out):
        _keep_if_same(partial, json.loads(json.dumps(plan)))
        try:
            yield partial
        except ExportError:
            (partial / PLAN_FILE).unlink()
            raise
        for name in (PLAN_FILE, LOCK_FILE):
            (partial / name).unlink()
        with atomic_path(out) as temporary:
            partial.rename(temporary)


def file_state(path: str | Path) -> list[int] | None:
    """Return size and modification time of a file, which show whether it was replaced; None if it is not a file."""
    path = Path(path)
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else None


def _keep_if_same(folder: Path, plan: dict[str, Any]) -> None:
    """Empty the folder unless it was started with the same plan."""
    plan_file = folder / PLAN_FILE
    try:
        same = json.loads(plan_file.read_text()) == plan
    except (OSError, ValueError):
        same = False
    if same:
        log.info("%s: resuming an interrupted export", folder)
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()
    plan_file.write_text(json.dumps(plan))


@contextlib.contextmanager
def _lock(path: Path, out: Path) -> Iterator[None]:
    """Lock out other processes for the length of the block."""
    with path.open("a") as file:
        _take(file, out)
        yield


def _take(file: IO[str], out: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ExportError(f"{out}: another process is exporting to it, only one may. Wait until it ends") from None
    except OSError as reason:  # a file system without locks
        log.warning("%s: cannot be locked (%s). Make sure that only one export writes to it", out, reason)
