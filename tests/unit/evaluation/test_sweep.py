"""The scores of a merge graph at several thresholds."""

import json

import numpy as np
import pytest

from ffn.assembly.given import Correction, corrections_text
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.cli import main
from ffn.contingency import count_pairs
from ffn.evaluation.scores import score
from ffn.evaluation.sweep import NO_MERGES, SWEPT_CONVENTIONS

from ...jobs import require_same_files, running
from ..volumes import read, write


def edge(a, b, score):
    return MergeEdge(a, b, score, 0, 0, 0, 10, 10, 100.0, Evidence(*[1] * 8, *[0.5] * 9))


@pytest.fixture
def row_of_four(tmp_path):
    """Words of a sweep of four segments in a row, and the labels."""
    labels = np.repeat([1, 2, 3, 4], 6).reshape(2, 3, 4)
    truth = write(tmp_path / "truth.h5", (labels // 3 + 1).astype(np.uint64))
    rows = [edge(1, 2, 0.5).row(), edge(2, 3, float("nan")).row()]
    (tmp_path / "graph.csv").write_text(header({}) + "\n".join(rows) + "\n")
    words = ["sweep", f"{tmp_path}/graph.csv", "--truth", truth, "--out", f"{tmp_path}/sweep.json"]
    return [*words, "--thresholds", "0.2", "0.7"], labels


def test_rows_are_written_by_falling_threshold(tmp_path, row_of_four):
    words, labels = row_of_four
    assert main([*words, "--segmentation", write(tmp_path / "base.h5", labels), "--box", "0:2,0:3,0:4"]) == 0
    content = json.loads((tmp_path / "sweep.json").read_text())
    assert content["box"] == "0:2,0:3,0:4" and content["provenance"]["stage"] == "sweep"
    assert content["abstained"] == 0.5
    rows = {name: [row["threshold"] for row in rows] for name, rows in content["sweep"].items()}
    assert rows == dict.fromkeys(("foreground", "all"), [NO_MERGES, 0.7, 0.2])  # not cremi: it leaves out borders
    voi = [row["voi_split"] for row in content["sweep"]["all"]]
    assert voi[0] == voi[1] > voi[2]


@pytest.fixture
def command(tmp_path, random_volumes, monkeypatch):
    """Words that sweep the threshold of two edges of four blocks."""
    monkeypatch.setattr("ffn.evaluation.scoring.blocks_of", lambda placed, _: list(placed.box.blocks((6, 6, 6))))
    truth, base = (write(tmp_path / f"{name}.zarr", one) for name, one in zip("tb", random_volumes, strict=True))
    (tmp_path / "graph.csv").write_text(header({}) + edge(1, 2, 0.5).row() + "\n" + edge(3, 4, 0.9).row() + "\n")
    return ["sweep", f"{tmp_path}/graph.csv", "--segmentation", base, "--truth", truth, "--box", "0:6,0:11,1:13"]


def test_jobs_and_killed_ones_give_the_bytes_of_one_process(tmp_path, command):
    assert list(require_same_files(running(command, "sweep.json"), tmp_path, ["2-of-2", "1-of-2", ""])) == [
        "sweep.json"
    ]


def test_a_finishing_job_needs_graphs(tmp_path, command, capsys):
    out = ["--out", str(tmp_path / "s.json")]
    assert main([command[0], *command[2:], *out]) == 2
    assert "GRAPH.csv" in capsys.readouterr().err


@pytest.fixture
def given(tmp_path):
    """Options with a correction that joins 1 and 2, of a row of four segments."""
    labels = np.repeat([1, 2, 3, 4], 6).reshape(1, 1, 24).astype(np.uint64)
    base, truth = (write(tmp_path / f"{name}.zarr", v) for name, v in (("base", labels), ("truth", labels // 3 + 1)))
    (tmp_path / "graph.csv").write_text(header({}) + "".join(edge(k, k + 1, 0.9).row() + "\n" for k in (2, 3)))
    (tmp_path / "corrections.csv").write_text(corrections_text([Correction("join", (0, 0, 0), (0, 0, 8))]))
    words = [f"{tmp_path}/graph.csv", "--segmentation", base]
    return words, ["--truth", truth], {"corrections": f"{tmp_path}/corrections.csv"}


@pytest.mark.parametrize("kinds", [(), ("corrections",)])
def test_the_scores_are_those_of_what_merge_writes(tmp_path, given, kinds):
    words, truth, specs = given
    options = [word for kind in kinds for word in (f"--{kind}", specs[kind])]
    assert main(["merge", *words, *options, "--threshold", "0.5", "--out", f"{tmp_path}/merged.zarr"]) == 0
    assert main(["sweep", *words, *truth, *options, "--thresholds", "0.5", "--out", f"{tmp_path}/sweep.json"]) == 0
    swept = json.loads((tmp_path / "sweep.json").read_text())
    table = count_pairs(read(truth[1]), read(f"{tmp_path}/merged.zarr"))
    for convention in SWEPT_CONVENTIONS:
        first, row = swept["sweep"][convention]
        assert {**row, **score(table, convention)} == row
        assert first["num_merges"] == ("corrections" in kinds), "at this threshold, people alone join"
    inputs = swept["provenance"]["inputs"]
    assert {kind: inputs[kind] for kind in specs if kind in inputs} == {kind: specs[kind] for kind in kinds}


@pytest.mark.parametrize("damaged", ["graph", "corrections"])
def test_damaged_files_of_people_are_named_before_volumes_are_read(tmp_path, given, monkeypatch, capsys, damaged):
    words, truth, specs = given
    (tmp_path / f"{damaged}.csv").write_text("damaged\n")
    monkeypatch.setattr("ffn.evaluation.sweep.Comparison", lambda *_, **__: pytest.fail("it has read for minutes"))
    options = [word for kind, spec in specs.items() for word in (f"--{kind}", spec)]
    assert main(["sweep", *words, *truth, *options, "--out", f"{tmp_path}/sweep.json"]) == 2
    assert f"{damaged}.csv" in capsys.readouterr().err


def test_other_thresholds_need_no_new_comparison_but_other_volumes_do(tmp_path, command, random_volumes, caplog):
    part = [*command, "--job", "1-of-1", "--out", str(tmp_path / "s.json")]
    caplog.set_level("INFO")
    assert [main(part), main([*part, "--thresholds", "0.2"])] == [0, 0]
    assert caplog.text.count("4 of 4") == 1
    write(tmp_path / "b.zarr", random_volumes[1] + 1)
    assert main(part) == 0
    assert caplog.text.count("blocks were finished") == 1
