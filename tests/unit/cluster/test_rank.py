"""One rank's way to its place."""

import subprocess
import sys

import pytest

from ffn.cluster.rank import Server, interface_of, main, rank_environment


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


def test_an_address_of_another_machine_has_no_interface_here():
    with pytest.raises(SystemExit, match="no network interface of .* has the address 192.0.2.1"):
        interface_of("192.0.2.1")


def test_ranks_start_without_heavy_imports():
    code = "import ffn.cluster.rank, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "horovod", "tensorflow", "h5py"} & set(loaded)
