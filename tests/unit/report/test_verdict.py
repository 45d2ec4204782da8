"""The verdict on a run."""

import shlex
import shutil
from pathlib import Path

import pytest

from ffn.cli import main
from ffn.io.open import open_volume
from ffn.report.pictures import open_volumes, slices
from ffn.report.run_folder import read_volumes
from ffn.report.verdict import verdict_on

from ..volumes import write
from .conftest import BOX, SIZE_ZYX_NM, make_exports, rescored

HEADS = ["verdict", "watershed", "worst errors", "warnings", "commands"]


def judge(run, **scores):
    rescored(run, **scores)
    return verdict_on(run, read_volumes(run)[0])


def with_voi(split, merge):
    values = {"are": 0.5, "voi": split + merge, "voi_split": split, "voi_merge": merge}
    return {"scores": {"all": values}, "covered_fraction": 1.0, "method": "watershed"}


def test_info_of_a_run_is_five_lines_and_its_commands_work(undrawn, capsys):
    make_exports(undrawn, "cube")
    assert main(["info", str(undrawn)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:12].rstrip() for line in lines] == HEADS
    assert "split-01 at" in lines[2] and "merge-01 at" in lines[2] and "none" in lines[3]
    view, report, tables = (shlex.split(each)[1:] for each in lines[4][13:].split("; "))
    assert view == ["view", str(undrawn)] and report == ["report", str(undrawn)]
    assert main(tables) == 0
    assert len(capsys.readouterr().out.splitlines()) > 10


@pytest.mark.parametrize(
    ("own", "other", "covered", "said"),
    [
        ((0.1, 0.4), (1, 1), 1.0, "higher merge.threshold"),
        ((0.4, 0.1), (1, 1), 1.0, "lower merge.threshold"),
        ((0.4, 0.1), (0.2, 0.2), 1.0, "train.max_steps"),
        ((0.4, 0.1), (1, 1), 0.3, "70.0 %"),
    ],
)
def test_the_next_step_follows_from_the_scores(undrawn, own, other, covered, said):
    scores = {"scores": with_voi(*own)["scores"], "covered_fraction": covered}
    verdict = judge(undrawn, **scores, baseline=with_voi(*other))
    assert said in verdict.next
    assert ("no better" in verdict.watershed) == (sum(own) >= sum(other))


def test_the_watershed_of_a_middle_is_compared_there(undrawn):
    baseline = {**with_voi(0.2, 0.2), "beside": with_voi(0.4, 0.2), "box": "0:1,0:9,0:9"}
    verdict = judge(undrawn, scores=with_voi(0.2, 0.1)["scores"], covered_fraction=1.0, baseline=baseline)
    assert "0.300" in verdict.good and "0.600" in verdict.watershed


def test_the_worst_errors_of_both_kinds_come_first_and_have_a_link(undrawn):
    make_exports(undrawn, "cube")
    (undrawn / "precomputed/cube/links").mkdir()
    (undrawn / "precomputed/cube/links/b.json").touch()
    entry = {"kind": "split", "position_zyx": [1, 2, 3]}
    errors = [{**entry, "name": name, "voi": voi} for name, voi in zip("abcd", (0.2, 0.9, 0.1, 0.3), strict=True)]
    verdict = judge(undrawn, errors=errors)
    assert [error["name"] for error in verdict.worst] == ["b", "d", "a"]
    assert verdict.command.endswith("--link b")


def test_sparse_labels_are_shown_where_they_are(copied):
    (files,) = read_volumes(copied)
    with open_volume(files.truth) as truth:
        labels = truth.read()
    labels[2:] = 0
    shutil.rmtree(files.truth)
    write(Path(files.truth), labels, BOX.start, SIZE_ZYX_NM)
    with open_volumes(files) as volumes:
        section = slices(volumes)[0]
    assert section["plane"].box.start[0] == BOX.start[0] + 1
    assert section["extent"].endswith(f" 2 of {BOX.shape[0]} sections")
