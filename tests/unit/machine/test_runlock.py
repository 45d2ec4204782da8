import logging
import socket

import pytest

from ffn.errors import ConfigError
from ffn.machine.runlock import take_lock


def test_the_error_names_the_holder_and_a_closed_file_releases_the_lock(tmp_path):
    with take_lock(tmp_path), pytest.raises(ConfigError, match=rf"process \d+ on {socket.gethostname()} works on it"):
        take_lock(tmp_path, seconds=0.1)
    take_lock(tmp_path).close()


def test_the_lock_is_taken_when_its_holder_ends_in_time(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    holder = take_lock(tmp_path)
    monkeypatch.setattr("ffn.machine.runlock.time.sleep", lambda seconds: holder.close())
    take_lock(tmp_path, seconds=60).close()
    assert [message.split()[1] for message in caplog.messages] == ["waiting"]


def test_the_lock_of_another_machine_can_be_ignored(tmp_path, caplog):
    with take_lock(tmp_path):
        (tmp_path / ".lock").write_text("process 7 on node3")
        assert take_lock(tmp_path, here_only=True) is None
        with pytest.raises(ConfigError, match="process 7 on node3"):
            take_lock(tmp_path)
    assert "process 7 on node3 has locked it" in caplog.text
