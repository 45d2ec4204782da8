"""Step times, and the file of Horovod's timeline."""

import numpy as np
import pytest

from ffn.errors import TrainError
from ffn.training.monitoring.timing import StepClock, timeline
from ffn.training.parallel.process_group import ProcessGroup


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


class Recorder(ProcessGroup):
    """Records the calls."""

    def __init__(self):
        self.calls = []

    def start_timeline(self, file):
        self.calls.append(file)

    def stop_timeline(self):
        self.calls.append("stop")


def test_the_timeline_gets_a_new_folder_and_stops_on_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = Recorder()
    with pytest.raises(ZeroDivisionError), timeline("new/folder/timeline.json", group):
        raise ZeroDivisionError
    assert group.calls == [tmp_path / "new/folder/timeline.json", "stop"]
    assert (tmp_path / "new/folder").is_dir()
    with timeline(None, group):
        pass
    assert len(group.calls) == 2


def test_a_timeline_that_cannot_be_written_gives_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file/timeline.json"):
        with pytest.raises(TrainError, match=f"train.horovod_timeline: {path} cannot be written"):
            with timeline(str(path), ProcessGroup()):
                pass
