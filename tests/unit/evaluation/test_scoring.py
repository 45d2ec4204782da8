"""With skeletons, the scores include the run length; the border band of the CREMI challenge."""

import json

import numpy as np
import pytest

from ffn.cli import main
from ffn.evaluation.scoring import near_border
from ffn.evaluation.skeletons import Skeletons, join

from .conftest import SIZE_ZYX_NM, TUBE_SIZE_NM, line


def test_the_run_length_is_in_the_scores(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    main(["skeletonize", "--labels", tubes[0], "--min-voxels", "500", "--out", out])
    scores = tmp_path / "s.json"
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", out, "--out", str(scores)]
    assert main(["evaluate", *arguments]) == 0
    erl = json.loads(scores.read_text())["erl"]
    assert 0.5 < erl["nerl"] < 0.9 and erl["num_skeletons"] == 2
    assert erl["shares"]["merged"] == 0 and 0 < erl["shares"]["split"] < 0.1
    assert json.loads(scores.read_text())["erl_tolerant"]["tolerance_nm"] == 200


@pytest.mark.parametrize(
    ("mask", "length"),
    [("10:22,20:60,76:90", 900), ("10:22,20:40,30:90", None)],  # 46 nodes are left, and none
)
def test_given_skeletons_do_not_count_in_masked_voxels(tmp_path, tubes, mask, length):
    x = np.arange(60)
    nodes = (np.stack([15 + 0 * x, 30 + 0 * x, 30 + x], axis=1) + 0.5) * TUBE_SIZE_NM
    line = Skeletons(nodes, np.stack([x[:-1], x[1:]], axis=1), np.full(60, 3, np.uint64))
    line.write(tmp_path / "given.h5", {})
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", str(tmp_path / "given.h5")]
    assert main(["evaluate", *arguments, "--masks", f"#box={mask}", "--out", str(tmp_path / "s.json")]) == 0
    scores = json.loads((tmp_path / "s.json").read_text())
    found = scores.get("erl", {"length_nm": None, "nerl": None})
    assert found["length_nm"] == length and found["nerl"] == (length and pytest.approx(1))


def test_skeletons_outside_the_box_are_an_error(tmp_path, tubes, capsys):
    join([line(900, 4)]).write(tmp_path / "far.h5", {})
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", str(tmp_path / "far.h5")]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 2
    assert "--skeletons" in capsys.readouterr().err


def test_the_border_band_is_measured_in_nanometres_within_a_section():
    labels = np.ones((2, 9, 11), np.uint64)
    labels[0, :, 6:] = 2
    band = near_border(labels, 20.0, SIZE_ZYX_NM)
    assert not band[1].any()  # only the own section counts
    assert np.flatnonzero(band[0, 4]).tolist() == [4, 5, 6, 7]  # x: the two voxels at the border, and 20 nm more
    turned = near_border(labels.transpose(0, 2, 1), 20.0, SIZE_ZYX_NM)
    assert np.flatnonzero(turned[0, :, 4]).tolist() == [3, 4, 5, 6, 7, 8]  # y: 10 nm voxels, two more
