import errno
import os

import pytest

from ffn.machine.lease import Lease


class Ended(Exception):
    """The process has ended."""


def fail(*_):
    raise OSError(errno.ESTALE, "Stale file handle")


def test_a_new_holder_whose_name_cannot_be_read_ends_the_process_too(tmp_path, monkeypatch, caplog):
    lease = Lease(tmp_path / ".lease", looks=3)
    assert lease.claim(None)
    (own,) = (tmp_path / ".lease").iterdir()
    own.unlink()
    monkeypatch.setattr(lease, "_read", fail)
    monkeypatch.setattr(os, "_exit", lambda code: (_ for _ in ()).throw(Ended))
    with pytest.raises(Ended):
        lease.beat()
    assert "another process has taken over" in caplog.text


def test_a_holder_that_cannot_be_read_is_looked_at_again_but_not_for_ever(tmp_path, monkeypatch):
    holder, lease = Lease(tmp_path / ".lease", looks=3), Lease(tmp_path / ".lease", looks=3)
    assert holder.claim(None)
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_read", fail)
        for _ in range(3):
            seen = lease.look()
            assert not seen.is_alive and not seen.is_gone
    assert lease.look().is_alive
    monkeypatch.setattr(lease, "_read", fail)
    for _ in range(3):
        lease.look()
    with pytest.raises(OSError, match="Stale"):
        lease.look()
