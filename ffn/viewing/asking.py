"""Ask one question of a queue after another in Neuroglancer, and write the answers to a file of corrections."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import neuroglancer

from ffn.assembly.given import Correction
from ffn.errors import FfnError
from ffn.viewing.corrections import bind, rewrite, tell
from ffn.viewing.queue import Place, Queue
from ffn.viewing.state import State, located, one_colour

log = logging.getLogger(__name__)

KEYS = {"y": "same", "n": "different", "k": "skip", "u": "back"}
HELP = "y same neuron, n different, k skip, u back"


class Answer(NamedTuple):
    """What was done at a place; a place without correction was skipped."""

    place: Place
    correction: Correction | None


class Asking:
    """The questions of one person."""

    def __init__(self, viewer: neuroglancer.Viewer, queue: Queue, path: Path, whole: State) -> None:
        self._viewer = viewer
        self._queue = queue
        self._path = path
        self._whole = whole  # state of the export, with its URL
        self._done: list[Answer] = []
        self._started = time.monotonic()
        self._place: Place | None = None

    def begin(self) -> None:
        """Show the first question, and listen to the keys."""
        for key, name in KEYS.items():
            bind(self._viewer, f"key{key}", f"ffn-{name}", partial(self.press, name))
        self._next()

    def press(self, name: str, _: object = None) -> None:
        """Take an answer; what cannot be written is told, and the question stays."""
        try:
            if name == "back":
                self._back()
            elif self._place is not None:
                self._answer(self._place, name)
        except (OSError, FfnError) as reason:
            log.error("%s: cannot be written (%s)", self._path, reason)
            self._tell(f"NOT SAVED: {reason}")

    def _answer(self, place: Place, name: str) -> None:
        correction = None
        if place.pair is not None and name != "skip":
            correction = place.correction(name == "same")
            self._write([correction])
            self._queue.answers[place.pair] = name == "same"
        self._done.append(Answer(place, correction))
        if not self._next():
            self._show(place, is_one=name == "same")
            self._tell("No more questions. u goes back, Ctrl-C in the terminal ends")

    def _back(self) -> None:
        """Take the last answer back, and ask again."""
        if not self._done:
            return
        place, correction = self._done[-1]
        if correction is not None and place.pair is not None:
            self._write(gone=[correction])
            self._queue.answers.pop(place.pair, None)
        self._done.pop()
        self._show(place)

    def _write(self, new: Sequence[Correction] = (), gone: Sequence[Correction] = ()) -> None:
        """Add lines to the file, and remove others. A deleted file gets all lines of this session."""
        lost = [] if self._path.exists() else [each.correction for each in self._done if each.correction]
        rewrite(self._path, [*lost, *new], gone)

    def _next(self) -> bool:
        """Show the most valuable place that was not shown yet; return whether there is one."""
        places = self._queue.places(1, {answer.place.key for answer in self._done})
        self._place = None
        for place in places:
            self._show(place)
        return bool(places)

    def _show(self, place: Place, is_one: bool = False) -> None:
        state = self._queue.state(self._whole, place)
        layout = self._viewer.state.to_json().get("layout", state["layout"])  # people may have changed it
        self._viewer.set_state({**(one_colour(state) if is_one else state), "layout": layout})
        self._place = None if is_one else place
        self._tell(f"{place.question()}   [{HELP}]")

    def _tell(self, text: str) -> None:
        answered = sum(answer.correction is not None for answer in self._done)
        minutes = (time.monotonic() - self._started) / 60
        tell(self._viewer, f"{answered} answered in {minutes:.0f} min.   {text}")


@contextlib.contextmanager
def asked(viewer: neuroglancer.Viewer, base: str, queue: Queue, path: Path, whole: State) -> Iterator[None]:
    """Ask in a viewer of an export, which is served at a URL; the file is there from the start."""
    rewrite(path)
    Asking(viewer, queue, path, located(whole, base)).begin()
    yield
