"""The state of a killed segmentation job: one file beside the output, whole or absent, verified when read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType

import numpy as np

from ffn.errors import SegmentError, VolumeError
from ffn.inference.grower import Arrays
from ffn.io import hdf5

log = logging.getLogger(__name__)

FINGERPRINT = "fingerprint"


class CheckpointFile:
    """``<output>.checkpoint``, written now and then while a job runs.

    Parameters
    ----------
    path : path
        The file.
    fingerprint : dict of str to str
        What the result depends on; a checkpoint of another fingerprint is not used.
    seconds : float
        Between two checkpoints; 0 writes none.
    """

    def __init__(self, path: str | Path, fingerprint: Mapping[str, str], seconds: float) -> None:
        self.path = Path(path)
        self._fingerprint = dict(fingerprint)
        self._seconds = seconds
        self._last = time.monotonic()
        self._terminated = False

    def load(self) -> Arrays | None:
        """Return what was saved last; None, and a line that says why, where it cannot be used."""
        if self._seconds == 0 or not self.path.exists():
            return None
        try:
            arrays = self._read()
        except VolumeError as error:
            log.warning("starting over, the checkpoint is damaged: %s", error)
            return None
        difference = self._difference(json.loads(arrays.pop(FINGERPRINT).tobytes()))
        if difference is not None:
            log.info("starting over, %s is of another job: %s", self.path, difference)
            return None
        log.info("resuming from %s", self.path)
        return arrays

    def save_when_due(self, state: Callable[[], Arrays]) -> None:
        """Save ``state()`` if it is time to, or if the process has been asked to end.

        Raises
        ------
        SegmentError
            After SIGTERM, when the state is saved.
        """
        if self._terminated or (self._seconds > 0 and time.monotonic() - self._last >= self._seconds):
            self.save(state())
        if self._terminated:
            raise SegmentError(f"{self.path}: stopped by SIGTERM, the state is saved. The same command goes on from it")

    def save(self, arrays: Arrays) -> None:
        """Write `arrays`; the file before is replaced when all is on disk."""
        fingerprint = np.frombuffer(json.dumps(self._fingerprint).encode(), np.uint8)
        content = {**arrays, FINGERPRINT: fingerprint}
        hdf5.write_arrays(self.path, content, {"sha256": _digest(content)})
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the job is done."""
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def saved_on_sigterm(self) -> Iterator[None]:
        """Let SIGTERM end the job at the next `save_when_due`; only the main thread of a process can ask for that."""
        if self._seconds == 0 or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    def _read(self) -> Arrays:
        arrays, attributes = hdf5.read_arrays(self.path)
        if FINGERPRINT not in arrays or str(attributes.get("sha256")) != _digest(arrays):
            raise VolumeError(f"{self.path}: its checksum is not that of its content")
        return arrays

    def _difference(self, other: dict[str, str]) -> str | None:
        """Say what is not as it was; None where everything is."""
        mine = self._fingerprint
        for name in sorted(mine.keys() | other.keys()):
            if mine.get(name) != other.get(name):
                return f"{name} is {mine.get(name)}, was {other.get(name)}"
        return None


def checksum(array: np.ndarray | None) -> str:
    """Return the SHA-256 of an array's bytes; of nothing for None."""
    return hashlib.sha256(b"" if array is None else np.ascontiguousarray(array).data).hexdigest()


def _digest(arrays: Arrays) -> str:
    """SHA-256 over names, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}{arrays[name].dtype}{checksum(arrays[name])}".encode())
    return digest.hexdigest()
