"""Step times."""

import numpy as np

from ffn.training.monitoring.metrics import StepClock


class Clock:
    """A clock that the test moves."""

    time = 100.0

    def __call__(self):
        return self.time


def test_times_add_up_to_the_lap_without_pauses():
    now = Clock()
    clock = StepClock(now)
    now.time += 5
    clock.lap()
    with clock.measure("input"):
        now.time += 2
    with clock.pause():
        now.time += 50
    now.time += 7
    clock.add("compute", 3)
    clock.add("allreduce", 1)
    np.testing.assert_allclose(clock.lap(), [2, 3, 1, 3])
    now.time += 1
    np.testing.assert_allclose(clock.lap(), [0, 0, 0, 1])
