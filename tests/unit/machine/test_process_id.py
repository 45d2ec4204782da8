import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ffn.machine.process_id import INITIAL_NAMESPACE, ProcessId, this_process


def test_a_name_has_all_of_a_process_and_other_names_have_none():
    process = ProcessId("gpu-node-7", "0a1b2c3d", "4026531836", 12, 34567)
    assert ProcessId.parse(str(process)) == process
    assert process.title == "process 12 on gpu-node-7"
    assert ProcessId.parse(".nfs00000000012") is None


def test_a_number_that_no_process_can_have_is_another_name():
    """The kernel would refuse to look for it."""
    assert ProcessId.parse(f"node-0a1b2c3d-4026531836-{2**40}-1") is None


@pytest.mark.parametrize(("namespace", "is_visible"), [(INITIAL_NAMESPACE, False), ("4026539999", True)])
def test_outside_containers_the_host_tells_machines_with_one_boot_id_apart(namespace, is_visible, monkeypatch):
    """In a container, the host's name may be that of the job."""
    monkeypatch.setattr("ffn.machine.process_id._namespace", lambda: namespace)
    assert this_process().is_visible
    assert replace(this_process(), host="another").is_visible == is_visible


def test_a_boot_is_told_by_64_bits():
    assert len(this_process().kernel) == 16


def test_a_process_is_gone_when_it_has_ended_even_if_nobody_has_noticed():
    assert not this_process().is_gone
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        start = int(Path(f"/proc/{other.pid}/stat").read_text().split()[21])
        process = replace(this_process(), pid=other.pid, start=start)
        assert not process.is_gone
        other.stdin.close()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # leaves it as a zombie
        assert process.is_gone
    assert process.is_gone


def test_the_next_process_with_the_same_number_is_another_one():
    assert replace(this_process(), start=this_process().start - 1).is_gone


@pytest.mark.parametrize("elsewhere", [{"kernel": "00000000"}, {"namespace": "1"}])
def test_a_process_elsewhere_is_never_known_to_be_gone(elsewhere):
    with subprocess.Popen(["true"]) as dead:
        pass
    assert replace(this_process(), pid=dead.pid).is_gone
    assert not replace(this_process(), pid=dead.pid, **elsewhere).is_gone


def test_a_process_of_another_user_runs_although_its_entry_may_be_hidden(monkeypatch):
    def refused(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    monkeypatch.setattr("ffn.machine.process_id._state_and_start", lambda pid: None)
    assert not ProcessId.parse(str(this_process())).is_gone
