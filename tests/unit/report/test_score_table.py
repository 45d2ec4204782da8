"""The table of scores."""

import json
import shlex

import pytest

from ffn.cli import main
from ffn.report.page import render
from ffn.report.verdict import format_scores, format_summary, score_rows

from .conftest import SCORES, Page, make_exports


def commands_in(text):
    return [shlex.split(line.partition(" ffn ")[2]) for line in text.splitlines() if " ffn " in line]


def test_the_summary_has_the_scores_and_names_the_report(copied, capsys):
    assert main(["info", str(copied), "--tables"]) == 0
    out = capsys.readouterr().out
    assert format_scores(copied) in out and commands_in(out) == [["report", str(copied)]]
    (copied / "report.html").touch()
    assert main(["info", str(copied), "--tables"]) == 0
    out = capsys.readouterr().out
    assert str(copied / "report.html") in out and commands_in(out) == []


def test_commands_in_the_summary_can_be_pasted(copied, capsys):
    folder = copied.rename(copied.with_name("a run"))
    make_exports(folder, "cube", "other")
    (folder / "model/model.yaml").touch()
    summary = format_summary(folder)
    assert f"{folder}/model" in summary and f"{folder}/segmentation/cube/segmentation.zarr" in summary
    written, *views = commands_in(summary)
    assert written == ["report", str(folder)]
    assert views == [["view", str(folder), "--volume", name] for name in ("cube", "other")]
    assert [main(["view", *words[1:], "--screenshot", f"{folder}/none/a.png"]) for words in views] == [2, 2]


def test_the_summary_and_the_page_tell_of_a_ruined_training(undrawn):
    table = undrawn / "model/validation.csv"
    table.write_text("step,f1\n0,0.9\n300,0.00006\n")
    (undrawn / "model/metrics.csv").write_text("step,loss,accuracy\n300,0.69,0.5\n")
    for told in (format_summary(undrawn), render(undrawn)):
        assert "6e-05" in told


@pytest.mark.parametrize("warning", ["grey levels are 209.5 ± 42.3, the network was trained on 128.0 ± 33.0", None])
def test_an_unknown_contrast_is_told_of(undrawn, warning):
    (undrawn / "normalization").mkdir()
    figures = {"volume": {"mean": 209.5, "stddev": 42.3}, "trained_on": {"mean": 128, "stddev": 33}}
    content = {"normalize": "match", "warning": warning, **figures}
    (undrawn / "normalization/cube.json").write_text(json.dumps(content))
    summary, text = format_summary(undrawn), Page(render(undrawn)).text
    assert (
        (f"contrast     cube: {warning}" in summary) == (f"contrast cube: {warning}" in text) == (warning is not None)
    )
    assert "209.5 ± 42.3" in text


def test_the_table_is_aligned_and_marks_the_better_value(run):
    title, header, *lines = format_scores(run).splitlines()
    rows, (legend, *_) = lines[:7], lines[7:]
    assert "cube" in title and "10:22,0:16,6:24" in title and header.split()[:3] == ["convention", "method", "ARE"]
    assert len(rows) == 7 and {len(row) for row in (header, *rows)} == {len(header)}
    assert "*" in rows[0] and legend.startswith("*")


def test_better_means_lower_errors_and_higher_shares():
    keys = ("are", "are_precision", "are_recall", "voi", "voi_split", "voi_merge")
    own = {"scores": {"all": dict(zip(keys, (0.1, 0.8, 0.9, 1.0, 0.5, None), strict=True))}, "covered_fraction": 0.5}
    other = {"scores": {"all": dict.fromkeys(keys, 0.5)}, "covered_fraction": 1.0, "method": "watershed"}
    ffn, watershed = score_rows({**own, "baseline": other})
    assert [cell.is_better for cell in ffn.cells] == [True, True, True, False, False, False, False]
    assert [cell.is_better for cell in watershed.cells] == [False, False, False, True, False, False, False]
    assert [cell.text for cell in ffn.cells[-2:]] == ["–", "50.0 %"]


def test_each_row_says_which_segmentation_it_belongs_to():
    entries = [
        {"scores": {"all": {**SCORES, "voi": voi}}, "covered_fraction": covered}
        for voi, covered in ((1.3, 0.8), (1.2, 0.8), (1.2, 1.0), (0.9, 1.0))
    ]
    base, agglomerated, filled, watershed = entries
    scores = {**filled, "segmentation": "filled", "earlier": {"base": base, "agglomerated": agglomerated}}
    limits = {"all": {"are": [0.1, 0.3], "voi": [1.0, 1.5]}}
    rows = score_rows({**scores, "intervals": limits, "baseline": {**watershed, "method": "watershed"}})
    assert [row.method for row in rows] == ["FFN, base", "FFN, agglomerated", "FFN, filled", "watershed"]
    assert [row.cells[3].is_better for row in rows] == [False, False, False, True]
    assert [row.cells[3].interval for row in rows] == ["", "", "1.000–1.500", ""]
    rows = score_rows(scores)
    assert [row.cells[3].is_better for row in rows] == [False, True, True]  # equal as shown, and better than the base


def test_scores_of_the_foreground_are_compared_on_the_same_voxels_only():
    def entry(voi, covered, *others):
        return {
            "scores": {name: {**SCORES, "voi": voi} for name in ("foreground", *others)},
            "covered_fraction": covered,
        }

    parts = {"agglomerated": entry(0.9, 0.8), "filled": entry(1.5, 1.0)}
    baseline = {**entry(1.5, 1.0, "all"), "method": "watershed", "same_voxels": parts}
    earlier = {"agglomerated": entry(1.1, 0.8, "all")}
    rows = score_rows({**entry(1.7, 1.0, "all"), "segmentation": "filled", "earlier": earlier, "baseline": baseline})
    methods = ["FFN, agglomerated", "FFN, filled", "watershed", "watershed, same 80.0 %"]
    assert [(row.convention, row.method) for row in rows] == [
        *(("foreground", method) for method in methods),
        *(("all", method) for method in methods[:3]),
    ]
    assert [row.cells[3].is_better for row in rows] == [False, False, True, True, True, False, False]


def test_a_baseline_of_the_middle_is_compared_there():
    entry = {"scores": {"all": {**SCORES}}, "covered_fraction": 0.5}
    better = {"scores": {"all": {**SCORES, "voi": 0.5}}, "covered_fraction": 0.5}
    baseline = {**entry, "method": "watershed", "box": "1:2,1:2,1:2", "beside": better}
    whole, middle, watershed = score_rows({**better, "box": "0:3,0:3,0:3", "baseline": baseline})
    assert [row.method for row in (whole, middle, watershed)] == ["FFN", "FFN, middle", "watershed, middle"]
    assert not any(cell.is_better for cell in whole.cells) and middle.cells[3].is_better
