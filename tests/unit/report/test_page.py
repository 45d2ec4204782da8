"""The report of a run."""

import json

import numpy as np
import pytest

from ffn.cli import main
from ffn.report.page import render
from ffn.report.verdict import format_scores

from ..volumes import write
from .conftest import BOX, SELECTION, Page, rescored


@pytest.fixture(scope="module")
def page(run):
    return Page(render(run))


def test_the_page_is_self_contained_and_well_formed(page):
    assert page.open == []
    assert all(url.startswith(("data:", "#")) for url in page.loads)
    # three planes of image, truth, FFN, watershed; image, truth, FFN of 2 errors, and one of each again
    assert page.pictures == 3 * 4 + 2 * 3 + 2


def test_the_page_shows_what_the_run_has(run, page):
    text = page.text
    scores = json.loads((run / "evaluation/cube.json").read_text())
    assert "tiny <run>" in text
    assert f"{scores['scores']['all']['are']:.3f}" in text
    verdict = text.partition("Slices")[0]
    assert all(f"{each['voi']:.3f}" in verdict for each in (scores["scores"]["all"], scores["errors"][0]))
    assert f"{scores['baseline']['scores']['cremi']['voi']:.3f}" in text
    assert f"{scores['cremi_score']:.3f}" in text
    assert "95.5" not in text and "2,048 MiB" in text and "numpy" in text
    assert "<script>alert(1)</script>" in text  # as text, not as a tag
    assert "split-01" in text and "merge-01" in text and SELECTION["best"] in text


def test_a_run_with_nothing_in_it_and_one_without_scores_have_a_page_too(tmp_path):
    (tmp_path / "model").mkdir()
    assert Page(render(tmp_path)).pictures == 0
    labels = np.ones(BOX.shape, np.uint64)
    write(tmp_path / "segmentation/new/segmentation.zarr", labels)
    write(tmp_path / "volumes/new/raw.zarr", labels.astype(np.uint8))
    assert Page(render(tmp_path)).pictures == 3 * 2


def test_an_export_is_linked_and_run_lengths_are_shown(undrawn):
    (undrawn / "precomputed/cube/links").mkdir(parents=True)
    (undrawn / "precomputed/cube/segmentation.csv").write_text("id\n")
    shares = {"correct": 0.5, "split": 0.2, "omitted": 0.2, "merged": 0.1}
    erl = {"erl_nm": 1230.0, "erl_truth_nm": 4560.0, "nerl": 0.27, "length_nm": 9e4, "num_skeletons": 7}
    erl["shares"] = shares
    rescored(undrawn, erl=erl, erl_tolerant={**erl, "erl_nm": 2340.0, "tolerance_nm": 200})
    page = render(undrawn)
    text = Page(page).text
    assert '<a href="precomputed/cube/segmentation.csv">' in page and f"ffn view {undrawn}" in text
    assert all(figure in text for figure in ("1.23", "2.34", "4.56", "0.270", "200"))
    assert "1.23 µm" in format_scores(undrawn)


@pytest.mark.parametrize("content", ["{", '{"box": "0:1,0:1,0:1", "scores": {"all": {}}}'])
def test_a_damaged_score_file_is_an_error_of_one_line(tmp_path, content, capsys):
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation/a.json").write_text(content)
    assert main(["report", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1 and "a.json" in errors[0]


def test_a_folder_that_is_no_run_and_a_page_that_cannot_be_written_are_refused(undrawn, tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(undrawn), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("ffn: error: ") == 2
