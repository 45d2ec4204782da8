"""Arrays that the processes on one machine share."""

import os
import threading

import numpy as np
import pytest

from ffn.training.parallel import node_array as module
from ffn.training.parallel.node_array import node_array


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Folder for temporary files."""
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def on_machines(per_machine, action, monkeypatch):
    """Function for a process that has as many neighbours; the machines have names."""
    hosts = {}
    monkeypatch.setattr(module.socket, "gethostname", lambda: hosts[threading.get_ident()])

    def run(group):
        group.local_rank, group.local_size = group.rank % per_machine, per_machine
        hosts[threading.get_ident()] = f"n{group.rank // per_machine}"
        return action(group)

    return run


def filled(group):
    """Fill one's share of ten rows with one's rank; return all rows."""
    shared = node_array(group, (10, 3), np.int16)
    shared.array[shared.part(10)] = group.rank
    group.barrier()
    return shared.array[:, 0].tolist(), isinstance(shared.array, np.memmap)


def test_the_processes_on_a_machine_fill_one_array(run_processes, monkeypatch, scratch):
    found = run_processes(4, on_machines(2, filled, monkeypatch))
    assert found == [([0] * 5 + [1] * 5, True)] * 2 + [([2] * 5 + [3] * 5, True)] * 2
    assert os.listdir(scratch) == []


def test_a_full_disk_is_told_and_leaves_nothing(run_processes, monkeypatch, scratch, caplog):
    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    found = run_processes(2, on_machines(2, filled, monkeypatch))
    assert found == [([rank] * 10, False) for rank in range(2)] and os.listdir(scratch) == []
    assert str(scratch) in caplog.text


def test_a_lost_process_leaves_no_file(monkeypatch, scratch):
    class Lost:
        size = local_size = 2
        local_rank = 0

        def gather(self, value):
            raise ConnectionError("rank 1 is lost")

    with pytest.raises(ConnectionError):
        node_array(Lost(), (10, 3), np.int16)
    assert os.listdir(scratch) == []
