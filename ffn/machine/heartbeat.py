"""Show a sign of life in regular intervals."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

BEAT_SECONDS = 10.0  # one metadata operation; our choice


@contextlib.contextmanager
def beating(beat: Callable[[], object]) -> Iterator[None]:
    """Call `beat` every `BEAT_SECONDS`, in the background, for the length of a ``with`` block."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(BEAT_SECONDS):
            try:
                beat()
            except Exception as reason:  # whatever it is, the next beat may succeed; without beats, others take over
                log.warning("no heartbeat (%s)", reason)

    thread = threading.Thread(target=run, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
