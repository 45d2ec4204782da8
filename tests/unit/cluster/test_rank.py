"""One rank's way to its place."""

import subprocess
import sys

import pytest

from ffn.cluster.rank import interface_of, main, rank_environment
from ffn.machine.rendezvous.client import Server


def test_a_rank_that_no_launcher_numbered_says_so(monkeypatch):
    monkeypatch.delenv("NO_SUCH_RANK", raising=False)
    with pytest.raises(SystemExit, match="ffn launch: none of NO_SUCH_RANK is set on .* Choose another --launcher"):
        main(["127.0.0.1:9", "1", "NO_SUCH_RANK", "true"])


def test_a_rank_without_the_secret_says_so(monkeypatch):
    monkeypatch.setenv("R", "4")
    monkeypatch.delenv("FFN_LAUNCH_SECRET", raising=False)
    with pytest.raises(SystemExit, match="ffn launch: FFN_LAUNCH_SECRET is not set on .* Tell it to by --launcher-opt"):
        main(["127.0.0.1:9", "1", "R", "true"])


def test_a_rank_without_a_server_says_so(monkeypatch):
    monkeypatch.setenv("R", "4")
    monkeypatch.setenv("FFN_LAUNCH_SECRET", "x7")
    with pytest.raises(SystemExit, match="rank 4 on .*: could not reach the first node, 127.0.0.1:9, in 1 s"):
        main(["127.0.0.1:9", "1", "R", "true"])


def test_the_network_of_nccl_stays_as_the_site_set_it(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "hsn")
    variables = rank_environment(Server("10.0.0.1", 4000, "x7"), "ib0", "3,4,1,2,1,2,n2")
    assert (variables["NCCL_SOCKET_IFNAME"], variables["HOROVOD_GLOO_IFACE"]) == ("hsn", "ib0")
    assert variables["HOROVOD_HOSTNAME"] == "n2" and variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4000"


@pytest.mark.parametrize(
    ("asked", "given"), [("debug", "info"), ("TRACE", "info"), ("warning", None), (None, None)], ids=str
)
def test_horovod_does_not_log_the_secret(asked, given, monkeypatch):
    monkeypatch.delenv("HOROVOD_LOG_LEVEL", raising=False)
    if asked:
        monkeypatch.setenv("HOROVOD_LOG_LEVEL", asked)
    variables = rank_environment(Server("10.0.0.1", 4000, "x7"), "ib0", "3,4,1,2,1,2,n2")
    assert variables.get("HOROVOD_LOG_LEVEL") == given


def test_one_rank_says_that_horovod_logs_less(monkeypatch, capsys):
    for name, value in {"R": "0", "FFN_LAUNCH_SECRET": "x7", "HOROVOD_LOG_LEVEL": "debug"}.items():
        monkeypatch.setenv(name, value)
    started = []
    monkeypatch.setattr("ffn.cluster.rank.rendezvous", lambda *_: ("127.0.0.1", "0,1,0,1,0,1,n1"))
    monkeypatch.setattr("os.execvpe", lambda name, words, environment: started.append(environment))
    main(["127.0.0.1:9", "1", "R", "true"])
    assert started[0]["HOROVOD_LOG_LEVEL"] == "info"
    assert capsys.readouterr().err.startswith("ffn launch: HOROVOD_LOG_LEVEL is info, because")


def test_an_address_of_another_machine_has_no_interface_here():
    with pytest.raises(SystemExit, match="no network interface of .* has the address 192.0.2.1"):
        interface_of("192.0.2.1")


def test_ranks_start_without_heavy_imports():
    code = "import ffn.cluster.rank, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "horovod", "tensorflow", "h5py"} & set(loaded)
