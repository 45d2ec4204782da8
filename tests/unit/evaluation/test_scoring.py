"""With skeletons, the scores include the run length."""

import json

from ffn.cli import main
from ffn.evaluation.skeletons import join

from .conftest import line


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


def test_without_skeletons_there_is_no_run_length(tmp_path, tubes):
    out = str(tmp_path / "skeletons.h5")
    assert main(["skeletonize", "--labels", tubes[0], "--min-voxels", "999999", "--out", out]) == 0
    scores = tmp_path / "s.json"
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", out, "--out", str(scores)]
    assert main(["evaluate", *arguments]) == 0
    assert "erl" not in json.loads(scores.read_text())


def test_skeletons_outside_the_box_are_an_error(tmp_path, tubes, capsys):
    join([line(900, 4)]).write(tmp_path / "far.h5", {})
    arguments = ["--segmentation", tubes[1], "--truth", tubes[0], "--skeletons", str(tmp_path / "far.h5")]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 2
    assert "none of 1 lies in 10:22,20:60,30:90" in capsys.readouterr().err
