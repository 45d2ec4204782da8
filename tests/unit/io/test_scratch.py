"""Rows of tables on a disk."""

import numpy as np
import pytest

from ffn.errors import VolumeError
from ffn.io.scratch import ScratchRows


def test_a_full_disk_is_one_line(monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir, buffering: open("/dev/full", "w+b", buffering))
    rows = ScratchRows((), np.int64, None)
    rows.append(np.arange(3))
    with pytest.raises(VolumeError, match="No space left"):
        rows[:]
