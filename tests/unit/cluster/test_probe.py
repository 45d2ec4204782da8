"""A probe of this machine, and its answer among other output."""

import json
import sys

import pytest

from ffn.cluster import probe
from ffn.cluster.probe import MARKER, answers, describe_node, lines


@pytest.fixture
def shared(tmp_path):
    (tmp_path / MARKER).touch()
    return tmp_path


def test_a_long_answer_survives_other_output_between_its_lines():
    long = {"packages": {f"package-{number}": str(number**9) for number in range(300)}}
    pieces = lines(long)
    assert len(pieces) > 1 and max(map(len, pieces)) < 1000
    mixed = [f"0: {line}" for pair in zip(reversed(pieces), reversed(lines(long)), strict=True) for line in pair]
    assert answers("noise\n" + "\n".join(mixed)) == [long, long]
    assert answers("\n".join(mixed[1:])) == [long], "an incomplete answer is none"


def test_a_node_sees_the_files_of_the_other_processes(shared):
    (shared / "node-other").write_text("node-other")
    (shared / "node-late").write_text("")  # shown, but not yet written
    found = describe_node(shared, num_processes=2, seconds=60)
    assert found["sees_marker"] and found["seen"] == 2
    assert found["cores"] >= 1 and found["memory_mb"] > 0 and "numpy" in found["packages"]


def test_a_node_without_the_shared_folder_says_so(tmp_path):
    assert describe_node(tmp_path, 1, 0)["sees_marker"] is False


def test_waiting_for_other_processes_has_an_end(shared):
    assert describe_node(shared, num_processes=2, seconds=0)["seen"] == 1


def test_a_missing_horovod_is_an_answer(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    probe.main(["build"])
    (found,) = answers(capsys.readouterr().out)
    assert "horovod" in json.dumps(found["error"])
