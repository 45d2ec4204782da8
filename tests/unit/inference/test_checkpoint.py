"""The checkpoint of a segmentation job: read back whole, or refused with a reason."""

import logging
import os
import signal
import threading

import numpy as np
import pytest

from ffn.errors import ModelError, SegmentError, VolumeError
from ffn.inference.checkpoint import CheckpointFile, checksum
from ffn.io import hdf5

STATE = {"claims/segmentation": np.arange(24).reshape(2, 3, 4), "seeds": np.empty((0, 3), np.int64)}
MINE = {"min_segment_size": "1000", "voxels": "abc"}


def checkpoint(folder, fingerprint=MINE, seconds=0.001):
    return CheckpointFile(folder / "seg.h5.checkpoint", fingerprint, seconds)


def test_what_was_saved_is_loaded(tmp_path):
    checkpoint(tmp_path).save(STATE)
    loaded = checkpoint(tmp_path).load()
    assert loaded.keys() == STATE.keys()
    assert all((loaded[name] == STATE[name]).all() and loaded[name].dtype == STATE[name].dtype for name in STATE)
    checkpoint(tmp_path).remove()
    assert checkpoint(tmp_path).load() is None and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", [{**MINE, "voxels": "abd"}, {"min_segment_size": "1000"}])
def test_a_checkpoint_of_another_job_is_named_and_not_used(tmp_path, caplog, other):
    checkpoint(tmp_path, other).save(STATE)
    with caplog.at_level(logging.INFO):
        assert checkpoint(tmp_path).load() is None
    (line,) = caplog.messages
    assert f"is from another job: voxels is abc, was {other.get('voxels')}" in line


@pytest.mark.parametrize("damage", ["truncated", "flipped", "foreign"])
def test_a_damaged_checkpoint_is_one_warning(tmp_path, caplog, damage):
    file = checkpoint(tmp_path)
    file.save(STATE)
    content = bytearray(file.path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[content.index(STATE["claims/segmentation"].tobytes()) + 8] ^= 1
    else:
        content = b"not HDF5"
    file.path.write_bytes(content)
    assert checkpoint(tmp_path).load() is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "damaged" in record.message and str(file.path) in record.message


def test_bits_flipped_anywhere_are_one_warning(tmp_path, caplog):
    """HDF5's own structures, too: h5py has a different error for nearly each of them."""
    file, rng = checkpoint(tmp_path), np.random.default_rng(0)
    file.save(STATE)
    content = np.frombuffer(file.path.read_bytes(), np.uint8)
    structure = np.flatnonzero(content)  # flips in the empty space between are harmless
    for _ in range(80):
        damaged = content.copy()
        damaged[rng.choice(structure, 3)] ^= (1 << rng.integers(8, size=3)).astype(np.uint8)
        file.path.write_bytes(damaged.tobytes())
        caplog.clear()
        loaded = file.load()
        assert len(caplog.records) == (loaded is None)
        assert loaded is None or all(np.array_equal(loaded[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, ValueError, TypeError, OSError])
def test_whatever_h5py_raises_is_damage(tmp_path, monkeypatch, kind):
    checkpoint(tmp_path).save(STATE)

    def fail(*_):
        raise kind("bad symbol table node")

    monkeypatch.setattr(hdf5.h5py.Group, "visititems", fail)
    with pytest.raises(ModelError, match="seg.h5.checkpoint: is damaged .*bad symbol table node.*Delete it"):
        hdf5.read_arrays(tmp_path / "seg.h5.checkpoint", ModelError)
    with hdf5.open_file(tmp_path / "seg.h5.checkpoint") as file, pytest.raises(VolumeError, match="is damaged"):
        hdf5.list_datasets(file)


def test_text_is_no_array(tmp_path):
    with hdf5.create_file(tmp_path / "seg.h5.checkpoint") as file:
        file["fingerprint"] = "text"
    assert checkpoint(tmp_path).load() is None


def test_it_is_written_when_it_is_time_to(tmp_path):
    never, later, now = (checkpoint(tmp_path, seconds=seconds) for seconds in (0, 1000, 1e-9))
    for file in (never, later):
        file.save_when_due(lambda: STATE)
    assert not now.path.exists()
    now.save_when_due(lambda: STATE)
    assert now.path.exists() and never.load() is None


def test_sigterm_saves_and_ends_the_job_with_one_line(tmp_path):
    file, before = checkpoint(tmp_path, seconds=1000), signal.getsignal(signal.SIGTERM)
    with pytest.raises(SegmentError, match="stopped by SIGTERM, the state is saved"), file.saved_on_sigterm():
        os.kill(os.getpid(), signal.SIGTERM)
        file.save_when_due(lambda: STATE)
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoint(tmp_path).load() is not None


def test_other_threads_leave_signals_alone(tmp_path):
    found = []

    def work():
        with checkpoint(tmp_path).saved_on_sigterm():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_checksums_tell_voxels_and_nothing_apart():
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert checksum(array) == checksum(array.T.copy().T) != checksum(array + 1)
    assert checksum(None) != checksum(array)
