"""A pool of volumes keeps only a few open."""

import contextlib

from ffn.assembly.pool import VolumePool


def test_the_least_recently_used_volume_is_closed(monkeypatch):
    events = []

    @contextlib.contextmanager
    def recorded(spec):
        events.append(f"+{spec}")
        yield spec
        events.append(f"-{spec}")

    monkeypatch.setattr("ffn.assembly.pool.open_segmentation", recorded)
    with VolumePool(max_open=2) as pool:
        assert [pool.open(spec) for spec in "abac"] == list("abac")
        assert events == ["+a", "+b", "-b", "+c"]
    assert events[4:] == ["-a", "-c"]
