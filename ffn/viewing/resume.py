"""A folder that takes long to fill: whole or absent for everybody else, continued by whoever tries again."""

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
    """Yield a hidden folder beside `out` that replaces it when the block ends without an error.

    Parameters
    ----------
    out : Path
        Final folder.
    plan : dict
        Everything that decides about the content, JSON-ready.

    Yields
    ------
    Path
        The folder: empty, or as a killed call with the same plan left it.

    Raises
    ------
    ExportError
        If another process fills it. An `ExportError` of the block itself means that the content is of no use: a
        repeated call begins anew.
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
    """Return size and time of change of a file, None for what is no file: enough to see that it was replaced."""
    path = Path(path)
    return [path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else None


def _keep_if_same(folder: Path, plan: dict[str, Any]) -> None:
    """Empty the folder unless it was begun with the same plan."""
    plan_file = folder / PLAN_FILE
    try:
        same = json.loads(plan_file.read_text()) == plan
    except (OSError, ValueError):
        same = False
    if same:
        log.info("%s: goes on where an interrupted export stopped", folder)
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()
    plan_file.write_text(json.dumps(plan))


@contextlib.contextmanager
def _lock(path: Path, out: Path) -> Iterator[None]:
    """Keep others out as long as this process lives."""
    with path.open("a") as file:
        _take(file, out)
        yield


def _take(file: IO[str], out: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ExportError(f"{out}: another process exports to it, one at a time is possible. Wait for it") from None
    except OSError as reason:  # a file system without locks
        log.warning("%s: no lock can be taken (%s): see to it that only one export writes it", out, reason)
