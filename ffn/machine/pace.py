"""How fast alternatives are on this machine, taken in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

SECONDS = 2.0  # for all alternatives together, without their first calls; our choice
MIN_ROUNDS = 3


def calls_per_second(
    alternatives: Mapping[str, Callable[[], object]], seconds: float = SECONDS, min_rounds: int = MIN_ROUNDS
) -> dict[str, float]:
    """Return one divided by the median time of a call of each alternative, called in turn.

    A machine that slows down slows down all of them. The first call of each is not timed; no round starts after
    `seconds`, but at least `min_rounds` are timed.
    """
    for call in alternatives.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in alternatives}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < min_rounds or time.perf_counter() < end:
        for name, call in alternatives.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
        rounds += 1
    return {name: 1 / statistics.median(each) for name, each in times.items()}
