"""One rank's way to its place."""

import subprocess
import sys

import pytest

from ffn.cluster.rank import interface_of, main, places, rank_environment
from ffn.machine.rendezvous import Server


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
    for name in ("R", "FFN_LAUNCH_SECRET"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"ffn launch: .*{named}"):
        main(["127.0.0.1", "9", "5", "1", "R", "true"])


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


def test_an_address_of_another_machine_has_no_interface_here():
    with pytest.raises(SystemExit, match="192.0.2.1"):
        interface_of("192.0.2.1")


def test_ranks_start_without_heavy_imports():
    code = "import ffn.cluster.rank, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "pydantic", "horovod", "tensorflow", "h5py"} & set(loaded)
