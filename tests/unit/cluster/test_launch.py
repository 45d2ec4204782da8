"""Ranks without ssh and MPI: they find each other, learn their places, and live and die together."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from ffn.cli import main
from ffn.cluster.launch import (
    LAUNCHERS,
    Launch,
    _rendezvous_server,
    launch,
    launcher_words,
    own_address,
    slots,
)
from ffn.errors import ClusterError
from ffn.machine.processes import dying_with_parent, run_together

PLACES = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE GLOO_IFACE CONTROLLER".split()
SHOW = f"import os; print(*(os.environ['HOROVOD_' + n] for n in {PLACES}), file=open(os.environ['HOROVOD_RANK'], 'w'))"


def ffn_launch(*arguments):
    return [sys.executable, "-m", "ffn", "launch", *arguments]


def test_every_rank_learns_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert launch(Launch(3, launcher="local", timeout=60), [sys.executable, "-c", SHOW]) == 0
    assert [(tmp_path / str(rank)).read_text().split() for rank in range(3)] == [
        [str(rank), "3", str(rank), "3", "0", "1", "lo", "gloo"] for rank in range(3)
    ]


def test_the_meeting_point_listens_at_one_address():
    with _rendezvous_server("127.0.0.1", 1) as port:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)


def test_places_of_ranks_that_come_in_turns_to_nodes_of_different_size():
    found = slots(["a", "b", "a", "b", "a"])
    assert [s.rank for s in found] == [0, 1, 2, 3, 4]
    assert [(s.local_rank, s.local_size) for s in found] == [(0, 3), (0, 2), (1, 3), (1, 2), (2, 3)]
    assert [(s.cross_rank, s.cross_size) for s in found] == [(0, 2), (1, 2), (0, 2), (1, 2), (0, 1)]
    assert {s.size for s in found} == {5}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("srun", "srun --kill-on-bad-exit=1 --ntasks=6 --nodes=2 --ntasks-per-node=4 --mem=0"),
        ("aprun", "aprun -n 6 -N 4 --mem=0"),
        ("mpiexec", "mpiexec -n 6 --ppn 4 --mem=0"),
        ("mpirun", "mpirun -n 6 --map-by ppr:4:node --mem=0"),
    ],
)
def test_command_lines_of_the_launchers(name, expected):
    job = Launch(6, ranks_per_node=4, launcher_options=["--mem=0"])
    assert " ".join(launcher_words(LAUNCHERS[name], name, job)) == expected


def test_the_first_failure_is_the_exit_code_is_named_and_ends_the_others(caplog):
    code = "import os, sys, time; sys.exit(7) if os.environ['N'] == '1' else time.sleep(600)"
    start = time.monotonic()
    environments = [{**os.environ, "N": str(number)} for number in range(3)]
    assert run_together([sys.executable, "-c", code], environments, own_groups=True) == 7
    assert caplog.messages == ["process 1 ended with exit code 7, so all end"]
    assert time.monotonic() - start < 60


def test_what_ignores_sigterm_is_killed():
    code = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); n = os.environ"
    code += "['N']; time.sleep(int(n) or 1); sys.exit(3)"
    environments = [{**os.environ, "N": number} for number in ("0", "600")]
    assert run_together([sys.executable, "-c", code], environments, grace=0.5) == 3


def test_the_grace_is_an_option(monkeypatch):
    given = []

    def run_together(command, environments, grace, own_groups):
        given.append((len(environments), grace))
        return 7

    monkeypatch.setattr("ffn.cluster.launch.run_together", run_together)
    options = ["--launcher", "local", "--grace-seconds", "0.5"]
    with pytest.raises(SystemExit, match="7"):
        main(["launch", "-n", "2", *options, "--", "true"])
    assert given == [(2, 0.5)]


def test_a_setpriv_that_cannot_is_not_used(tmp_path, monkeypatch):
    """That of util-linux 2.32, on Enterprise Linux 8: every job would end at once."""
    (tmp_path / "setpriv").write_text("#!/bin/sh\necho \"setpriv: unrecognized option '$1'\" >&2; exit 1\n")
    (tmp_path / "setpriv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    dying_with_parent.cache_clear()
    try:
        assert dying_with_parent() == ()
    finally:
        dying_with_parent.cache_clear()


def test_ctrl_c_in_a_terminal_reaches_each_rank_once(tmp_path):
    code = (
        "import os, signal, time\n"
        "def note(*_): open(os.environ['HOROVOD_RANK'], 'a').write('x')\n"
        "signal.signal(signal.SIGINT, note); open('ready' + os.environ['HOROVOD_RANK'], 'w').close()\n"
        "end = time.monotonic() + 60\n"
        "while time.monotonic() < end and not os.path.exists('enough'): time.sleep(0.05)\n"
    )
    command = ffn_launch("-n", "2", "--launcher", "local", "--", sys.executable, "-c", code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, process_group=0)
    wait_for_ranks(process, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("[01]"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    (tmp_path / "enough").touch()
    assert process.wait(timeout=60) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["x", "x"]


def wait_for_ranks(process, folder):
    deadline = time.monotonic() + 60
    while len(list(folder.glob("ready?"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_ranks(number, tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "def end(*_): open(os.environ['HOROVOD_RANK'], 'w').close(); os._exit(5)\n"
        f"signal.signal({number:d}, end); open('ready' + os.environ['HOROVOD_RANK'], 'w').close(); time.sleep(600)"
    )
    command = ffn_launch("-n", "2", "--", sys.executable, "-c", code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    wait_for_ranks(process, tmp_path)
    for _ in range(30):  # as often as a dying parent has threads
        process.send_signal(number)
    assert process.wait(timeout=60) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "ready0", "ready1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--", "no-such-command"], "no-such-command cannot be started on"),
        (["--ranks-per-node", "0", "--", "true"], "--ranks-per-node: 0, expected at least 1"),
        (["--launcher-options", "'", "--", "true"], "--launcher-options: "),
        (["--grace-seconds", "-1", "--", "true"], "--grace-seconds: -1, expected at least 0"),
    ],
)
def test_mistakes_are_told_without_a_traceback(words, message):
    done = subprocess.run(ffn_launch("-n", "1", "--launcher", "local", *words), capture_output=True, text=True)
    assert done.returncode != 0 and message in done.stderr and "Traceback" not in done.stderr


def test_a_launcher_that_is_not_there(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match="aprun is not on PATH"):
        launch(Launch(2, launcher="aprun", interface="lo"), ["true"])


def test_an_interface_that_is_not_there():
    with pytest.raises(ClusterError, match="--interface: no-such has no IPv4 address, expected one of .*lo"):
        own_address("no-such")


def test_a_rank_that_no_launcher_numbered(tmp_path):
    command = [sys.executable, "-m", "ffn.cluster.rank", "127.0.0.1:9", "1", "NO_SUCH_RANK", "true"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "none of NO_SUCH_RANK is set" in done.stderr


def test_a_server_that_is_not_there(tmp_path):
    command = [sys.executable, "-m", "ffn.cluster.rank", "127.0.0.1:9", "1", "R", "true"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "R": "4"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "rank 4" in done.stderr
        and "could not reach the first node, 127.0.0.1:9, in 1 s" in done.stderr
    )


def test_ranks_start_without_heavy_imports():
    code = "import ffn.cluster.rank, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "horovod", "tensorflow", "h5py"} & set(loaded)
