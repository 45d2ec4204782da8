import threading

from ffn.machine import heartbeat
from ffn.machine.heartbeat import beating


def test_it_beats_until_the_block_ends(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    beats, enough = [], threading.Event()

    def beat():
        beats.append(1)
        if len(beats) >= 3:
            enough.set()

    with beating(beat):
        enough.wait()
    told = len(beats)
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    assert len(beats) == told


def test_one_beat_that_fails_does_not_end_the_others(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    beats, enough = [], threading.Event()

    def beat():
        beats.append(1)
        if len(beats) == 1:
            raise OSError("stale")
        enough.set()

    with beating(beat):
        assert enough.wait(60)
