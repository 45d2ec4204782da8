"""Ranks without ssh and MPI: they find each other, learn their places, and end together."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ffn.cluster.launch import Launch, launch, launcher_words, own_address
from ffn.cluster.rank import interface_of, main, places, rank_environment
from ffn.errors import ClusterError
from ffn.machine.rendezvous import Server

PLACES = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE GLOO_IFACE CONTROLLER".split()
SHOW = f"import os; print(*(os.environ['HOROVOD_' + n] for n in {PLACES}), file=open(os.environ['HOROVOD_RANK'], 'w'))"


def started(folder, code, *options, **how):
    """Start two ranks that run this code."""
    command = [sys.executable, "-m", "ffn", "launch", "-n", "2", *options, "--", sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL, **how)


def wait_for(number, folder, pattern, process):
    """Wait for that many files, which the ranks of a process write."""
    while len(list(folder.glob(pattern))) < number:
        assert process.poll() is None
        time.sleep(0.05)


def test_every_rank_learns_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert launch(Launch(3, launcher="local"), [sys.executable, "-c", SHOW]) == 0
    assert [(tmp_path / str(rank)).read_text().split() for rank in range(3)] == [
        [str(rank), "3", str(rank), "3", "0", "1", "lo", "gloo"] for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gradients-per-update", "all", "--max-staleness=0"], 3),
        (["--gradients-per-update=1"], 0),
        (["--max-staleness", "none"], 0),
    ],
)
def test_ranks_go_on_without_another_where_updates_take_the_first_gradients(options, expected):
    fail = "import os, sys; sys.exit(3 * int(os.environ['HOROVOD_RANK']))"
    assert launch(Launch(2, launcher="local"), [sys.executable, "-c", fail, *options]) == expected


def test_the_secret_is_on_no_command_line(tmp_path, monkeypatch):
    """A launcher that starts its only rank notes what everybody can see."""
    fake = tmp_path / "mpirun"
    fake.write_text('#!/bin/sh\necho "$@" > seen\necho "$FFN_LAUNCH_SECRET" > secret\n')
    fake.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "lo")
    assert launch(Launch(1, launcher="mpirun"), ["true"]) == 0
    seen, secret = (tmp_path / "seen").read_text(), (tmp_path / "secret").read_text().strip()
    assert len(secret) > 30 and secret not in seen
    assert "-x FFN_LAUNCH_SECRET" in seen  # Open MPI passes on only what it is told to


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("srun", "srun --kill-on-bad-exit=1 --ntasks=6 --nodes=2 --ntasks-per-node=4 --mem=0"),
        ("aprun", "aprun -n 6 -N 4 --mem=0"),
        ("mpiexec", "mpiexec -n 6 --ppn 4 --mem=0"),
        ("mpirun", "mpirun -x FFN_LAUNCH_SECRET -n 6 --map-by ppr:4:node --mem=0"),
    ],
)
def test_each_launcher_has_its_own_options(name, expected):
    job = Launch(6, ranks_per_node=4, launcher_options=["--mem=0"])
    assert " ".join(launcher_words(name, job)) == expected


def test_ctrl_c_in_a_terminal_reaches_each_rank_once(tmp_path):
    code = (
        "import os, signal, time\n"
        "def note(*_): open(os.environ['HOROVOD_RANK'], 'a').write('x')\n"
        "signal.signal(signal.SIGINT, note); open('ready' + os.environ['HOROVOD_RANK'], 'w').close()\n"
        "end = time.monotonic() + 600\n"
        "while time.monotonic() < end and not os.path.exists('enough'): time.sleep(0.05)\n"
    )
    process = started(tmp_path, code, "--launcher", "local", process_group=0)
    wait_for(2, tmp_path, "ready?", process)
    os.killpg(process.pid, signal.SIGINT)
    wait_for(2, tmp_path, "[01]", process)
    (tmp_path / "enough").touch()
    assert process.wait() == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["x", "x"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_ranks(number, tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "def end(*_):\n"
        "    open(os.environ['HOROVOD_RANK'], 'w').close()\n"
        "    while not all(map(os.path.exists, ('0', '1', 'sent'))):\n"  # the first one's end would stop the other
        "        time.sleep(0.01)\n"
        "    os._exit(5)\n"
        f"signal.signal({number:d}, end); open('ready' + os.environ['HOROVOD_RANK'], 'w').close(); time.sleep(600)"
    )
    process = started(tmp_path, code)
    wait_for(2, tmp_path, "ready?", process)
    for _ in range(30):  # as often as a dying parent has threads
        process.send_signal(number)
    (tmp_path / "sent").touch()
    assert process.wait() == 5
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "ready0", "ready1", "sent"}


def test_a_missing_launcher_or_interface_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match="aprun is not"):
        launch(Launch(2, launcher="aprun"), ["true"])
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "no-such")
    with pytest.raises(ClusterError, match="HOROVOD_GLOO_IFACE: no-such .*lo"):
        own_address()
    with pytest.raises(SystemExit, match="192.0.2.1"):
        interface_of("192.0.2.1")


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, "R "),
        ({"R": "5"}, "rank 5, .* 5"),
        ({"R": "4"}, "FFN_LAUNCH_SECRET"),
        ({"R": "4", "FFN_LAUNCH_SECRET": "x7"}, "rank 4 on .* 127.0.0.1:9"),
    ],
)
def test_a_rank_that_lacks_something_names_it(monkeypatch, variables, named):
    monkeypatch.setattr("ffn.cluster.rank.START_SECONDS", 1)
    for name in ("R", "FFN_LAUNCH_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"ffn launch: .*{named}"):
        main(["127.0.0.1", "9", "5", "R", "true"])


def test_ranks_that_alternate_between_nodes_of_different_size_have_their_places():
    found = [places(["a", "b", "a", "b", "a"], rank) for rank in range(5)]
    assert [(each["RANK"], each["SIZE"], each["HOSTNAME"]) for each in found] == [
        (str(rank), "5", host) for rank, host in enumerate("ababa")
    ]
    assert [each["LOCAL_RANK"] + each["LOCAL_SIZE"] for each in found] == ["03", "02", "13", "12", "23"]
    assert [each["CROSS_RANK"] + each["CROSS_SIZE"] for each in found] == ["02", "12", "02", "12", "01"]


def test_the_network_of_nccl_stays_as_the_site_set_it(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "hsn")
    variables = rank_environment(Server("10.0.0.1", 4000, "x7"), "ib0", places(["n1", "n2", "n1", "n2"], 3))
    assert (variables["NCCL_SOCKET_IFNAME"], variables["HOROVOD_GLOO_IFACE"]) == ("hsn", "ib0")
    assert variables["HOROVOD_HOSTNAME"] == "n2" and variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4000"


def test_ranks_start_without_heavy_imports():
    code = "import ffn.cluster.rank, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "horovod", "tensorflow", "h5py"} & set(loaded)
