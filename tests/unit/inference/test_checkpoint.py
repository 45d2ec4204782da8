"""The checkpoint of a segmentation job is read back unchanged or refused with a reason."""

import logging

import numpy as np
import pytest

from ffn.config import SegmentConfig
from ffn.inference.subvolume import CheckpointFile, fingerprint
from ffn.provenance import REVISIONS, revision

STATE = {"claims/segmentation": np.arange(24).reshape(2, 3, 4), "seeds": np.empty((0, 3), np.int64)}
MINE = {"min_segment_size": "1000", "voxels": "abc"}


def checkpoint(folder, fingerprint=MINE, seconds=0.001):
    return CheckpointFile(folder / "seg.h5.checkpoint", fingerprint, seconds)


@pytest.mark.parametrize("other", [{**MINE, "voxels": "abd"}, {"min_segment_size": "1000"}])
def test_a_checkpoint_of_another_job_is_not_used_and_the_difference_logged(tmp_path, caplog, other):
    checkpoint(tmp_path, other).save(STATE)
    with caplog.at_level(logging.INFO):
        assert checkpoint(tmp_path).load() is None
    (line,) = caplog.messages
    assert f"is abc, was {other.get('voxels')}" in line


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


def test_a_checkpoint_is_written_when_the_interval_has_passed(tmp_path):
    for seconds in (1000, 1e-9):
        file = checkpoint(tmp_path, seconds=seconds)
        file.save_when_due(lambda: STATE)
        assert file.path.exists() == (seconds < 1)


def test_other_options_inputs_or_another_revision_make_another_job(monkeypatch):
    def job(voxels="abc", **options):
        return fingerprint(SegmentConfig(**options), {"volumes": voxels})

    before, others = job(), [job(canvases=2), job(seed_order="reversed"), job(max_fovs=9), job("abd")]
    assert job(checkpoint_seconds=1.0) == before not in others
    monkeypatch.setitem(REVISIONS, "segment", revision("segment") + 1)
    assert job() != before
