"""The checkpoint of a segmentation job: one file, written atomically and verified when read."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ffn.inference.grower import Arrays
from ffn.io.atomic import atomic_path

log = logging.getLogger(__name__)

FINGERPRINT = "fingerprint"


class CheckpointFile:
    """A file, written at intervals while a job runs."""

    def __init__(self, path: str | Path, fingerprint: Mapping[str, str], seconds: float) -> None:
        self.path = Path(path)
        self._fingerprint = dict(fingerprint)
        self._seconds = seconds
        self._last = time.monotonic()

    def load(self) -> Arrays | None:
        """Return the saved arrays; return None and log the reason if they cannot be used."""
        if not self.path.exists():
            return None
        try:
            with open(self.path, "rb") as file, np.load(file) as saved:  # which compares the content with its checksums
                arrays = dict(saved)
            other = json.loads(str(arrays.pop(FINGERPRINT)))
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            log.warning("starting over, because the checkpoint %s is damaged: %s", self.path, error)
            return None
        mine = self._fingerprint
        for name in sorted(mine.keys() | other.keys()):
            if mine.get(name) != other.get(name):
                reason = f"{name} is {mine.get(name)}, was {other.get(name)}"
                log.info("starting over, because %s is from another job: %s", self.path, reason)
                return None
        log.info("resuming from %s", self.path)
        return arrays

    def save_when_due(self, state: Callable[[], Arrays], now: bool = False) -> None:
        """Save ``state()`` if the interval has passed, or `now`."""
        if now or time.monotonic() - self._last >= self._seconds:
            self.save(state())

    def save(self, arrays: Arrays) -> None:
        """Write `arrays`, replacing the file atomically."""
        with atomic_path(self.path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays, **{FINGERPRINT: np.array(json.dumps(self._fingerprint))})  # type: ignore[arg-type]
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file when the job is done."""
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def sigterm_noticed() -> Iterator[threading.Event]:
    """Yield whether SIGTERM has arrived, which no longer ends the process."""
    arrived = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrived.set())
    try:
        yield arrived
    finally:
        signal.signal(signal.SIGTERM, before)


def path_for(output: str) -> str:
    """Return the path of the checkpoint of an output: next to it, or in this folder if the output is remote.

    Examples
    --------
    >>> path_for("out/seg.h5"), path_for("file:///out/seg.zarr"), path_for("s3://bucket/a/seg.zarr")
    ('out/seg.h5.checkpoint', '/out/seg.zarr.checkpoint', 's3-bucket-a-seg.zarr.checkpoint')
    """
    path = output.removeprefix("file://")
    return f"{path.replace('://', '-').replace('/', '-') if '://' in path else path}.checkpoint"
