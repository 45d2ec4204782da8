"""The report of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from ffn.cli import main
from ffn.report.page import render
from ffn.report.score_table import format_scores

from ..volumes import write
from .conftest import BOX, Page


def test_the_page_is_self_contained_and_well_formed(run):
    page = Page(render(run))
    assert page.open == []
    assert all(url.startswith("data:") for url in page.loads)
    # three planes of image, truth, FFN, watershed; truth and FFN in 3D; image, truth, FFN of a split and a merger
    assert page.pictures == 3 * 4 + 2 + 2 * 3


def test_the_page_shows_what_the_run_has(run):
    text = Page(render(run)).text
    scores = json.loads((run / "evaluation/cube.json").read_text())
    assert "tiny <run>" in text
    assert f"{scores['scores']['all']['are']:.3f}" in text
    assert f"{scores['baseline']['scores']['cremi']['voi']:.3f}" in text
    assert "Other data: do not rank these" in text and "1.9518" in text
    assert "1 min 36 s" in text and "2,048 MiB" in text and "only the last attempt is measured" in text
    assert "<script>alert(1)</script>" in text  # as text, not as a tag
    assert "xz plane, 0.18 × 0.48 µm at y = 8" in text
    assert "split-01" in text and "merge-01" in text and "All 2 listed errors" in text
    assert "merge threshold; at 1" in text and "Step 00000500 has the best VOI" in text
    assert (
        "core hours" in text
        and "numpy" in text
        and f"CREMI score √(VOI · ARE), 25 nm at borders ignored: {scores['cremi_score']:.3f}" in text
    )


def test_the_page_says_what_a_run_lacks(tmp_path):
    (tmp_path / "model").mkdir()
    text = Page(render(tmp_path)).text
    for sentence in (
        "Nothing has been segmented yet",
        "No training curves",
        "Nothing was measured",
        "no config.yaml",
    ):
        assert sentence in text


@pytest.mark.parametrize("has_curves", [True, False])
def test_a_training_that_went_wrong_is_warned_of(copied, has_curves):
    warning = "Training: validation F1 fell from 0.9 after step 0 to 0.4 after step 500."
    assert warning not in Page(render(copied)).text
    (copied / "model/validation.csv").write_text("step,loss,f1\n0,0.3,0.9\n500,0.6,0.4\n")
    if not has_curves:  # as of a training that ended before the first row
        (copied / "model/metrics.csv").unlink()
    text = Page(render(copied)).text
    assert warning in text and ("No training curves" in text) != has_curves


def test_step_0_is_said_to_be_the_weights_of_init(copied):
    place = copied / "selected/selection.json"
    place.write_text(place.read_text().replace("00000500", "00000000"))
    assert "Step 00000000, the weights of init, has the best VOI" in Page(render(copied)).text


def test_an_unscored_volume_is_shown_without_scores(tmp_path):
    labels = np.ones(BOX.shape, np.uint64)
    write(tmp_path / "segmentation/new/segmentation.zarr", labels)
    write(tmp_path / "volumes/new/raw.zarr", labels.astype(np.uint8))
    page = Page(render(tmp_path))
    assert page.pictures == 3 * 2 + 1
    assert "Not scored" in page.text


def test_the_command_writes_the_page(run, tmp_path):
    assert main(["report", str(run), "--out", str(tmp_path / "new" / "r.html")]) == 0
    assert (tmp_path / "new" / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_the_page_links_the_tables_of_an_export(copied):
    assert "Tables of all segments" not in render(copied)
    (copied / "precomputed/cube").mkdir(parents=True)
    (copied / "precomputed/cube/segmentation.csv").write_text("id\n")
    link = '<a href="precomputed/cube/segmentation.csv">precomputed/cube/segmentation.csv</a>.'
    assert link in render(copied)


def test_the_page_tells_how_to_open_the_links_of_an_export(copied):
    assert "ffn view" not in Page(render(copied)).text
    (copied / "precomputed/cube/links").mkdir(parents=True)
    assert f"ffn view {copied} --volume cube --link NAME" in Page(render(copied)).text


def test_run_lengths_are_shown(copied):
    path = copied / "evaluation/cube.json"
    shares = {"correct": 0.5, "split": 0.2, "omitted": 0.2, "merged": 0.1}
    erl = {
        "erl_nm": 1230.0,
        "erl_truth_nm": 4560.0,
        "nerl": 0.27,
        "length_nm": 9e4,
        "num_skeletons": 7,
        "shares": shares,
    }
    scores = json.loads(path.read_text()) | {"erl": erl, "erl_tolerant": {**erl, "erl_nm": 2340.0, "tolerance_nm": 200}}
    path.write_text(json.dumps(scores))
    text = Page(render(copied)).text
    assert "1.23" in text and "2.34" in text and "FFN, 200 nm tolerated" in text and "7 skeletons" in text
    assert "run length, FFN: 1.23 µm (NERL 0.270) of 4.56 µm; 2.34 µm" in format_scores(copied)


def test_scores_of_other_voxels_are_not_put_beside_those_of_the_whole_box(copied):
    """Of a large box, the watershed covers only the middle; the table has a row of the FFN there."""
    path = copied / "evaluation/cube.json"
    scores = json.loads(path.read_text())
    assert "watershed 0." in Page(render(copied)).text
    part = {key: scores[key] for key in ("scores", "covered_fraction")}
    scores["baseline"] |= {"box": "11:20,1:15,7:23", "beside": part}
    path.write_text(json.dumps(scores))
    text = Page(render(copied)).text
    assert "watershed 0." not in text and "watershed, middle" in text


def test_what_a_stage_changes_is_told_with_its_interval(copied):
    path = copied / "evaluation/cube.json"
    scores = json.loads(path.read_text())
    limits = {"are": [-0.02, 0.01], "voi": [-0.4, -0.05]}
    changes = [{"from": "base", "to": "filled", "intervals": {"all": limits}}]
    path.write_text(json.dumps({**scores, "segmentation": "filled", "changes": changes}))
    assert "From base to filled, over all voxels, VOI changes by -0.400 to -0.050" in Page(render(copied)).text
    told = "95 %, all, from base to filled: ARE -0.020 to +0.010, VOI -0.400 to -0.050"
    assert told in format_scores(copied).splitlines()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda run: None, "has no output of a stage"),
        (
            lambda run: (run / "evaluation").mkdir() or (run / "evaluation/a.json").write_text("{"),
            "a.json: is not a score",
        ),
        (
            lambda run: (run / "evaluation").mkdir() or (run / "evaluation/a.json").write_text("{}"),
            "a.json: is not a score",
        ),
        (
            lambda run: (
                (run / "evaluation").mkdir()
                or (run / "evaluation/a.json").write_text('{"box": "0:1,0:1,0:1", "scores": {"all": {}}}')
            ),
            "a.json: is not a score file of this version",
        ),
        (
            lambda run: (run / "model").mkdir() or (run / "report.html").mkdir(),
            "report.html: cannot be written",
        ),
    ],
)
def test_bad_input_is_an_error_of_one_line(tmp_path, prepare, message, capsys):
    prepare(tmp_path)
    assert main(["report", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and message in errors[0]


def test_the_page_is_written_into_the_run_unless_it_is_given(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.report.page.report", lambda *given: calls.append(given))
    assert main(["report", "results/demo"]) == main(["report", "results/demo", "--out", "a.html"]) == 0
    assert calls == [("results/demo", str(Path("results/demo/report.html"))), ("results/demo", "a.html")]


def test_the_summary_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr("ffn.report.score_table.format_summary", lambda *given: " ".join(given))
    assert main(["report", "results/demo", "--summary", "--out", "a.html"]) == 0
    assert capsys.readouterr().out == "results/demo a.html\n"
