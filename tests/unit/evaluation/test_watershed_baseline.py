"""The watershed baseline is scored like the segmentation, in the middle of large boxes."""

import json

import numpy as np
import pytest
from skimage import segmentation

from ffn.cli import main
from ffn.evaluation.baseline import SWEEP
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import References, evaluate
from ffn.evaluation.skeletons import Skeleton, join
from ffn.evaluation.watershed_baseline import middle_of
from ffn.geometry import Box
from ffn.io.open import open_volume

from ..volumes import write
from .conftest import SIZE_ZYX_NM


def test_the_watershed_is_scored_and_saved(tmp_path, specs, image):
    arguments = ["--segmentation", specs[0], "--truth", specs[1], "--image", image, "--box", "1:9,0:18,2:28"]
    kept = f"{tmp_path / 'base.h5'}:segmentation"
    assert main(["evaluate", *arguments, "--baseline-out", kept, "--out", str(tmp_path / "s.json")]) == 0
    baseline = json.loads((tmp_path / "s.json").read_text())["baseline"]
    assert baseline["sweep"][0]["settings"] == baseline["settings"]
    assert baseline["sweep"][0]["voi"] == pytest.approx(baseline["scores"]["all"]["voi"])
    with open_volume(kept) as volume:
        assert volume.box == Box.parse("1:9,0:18,2:28")
        assert volume.voxel_size_zyx_nm == SIZE_ZYX_NM
    again = evaluate(*specs, tmp_path / "t.json", EvaluateConfig(), volume.box, References(baseline=kept))
    assert again["baseline"]["scores"] == baseline["scores"]


@pytest.fixture
def made(monkeypatch):
    """Watersheds that were made, as often as they are; at the call `made.last`, the process is interrupted."""

    class Made(list):
        last = None

    def watershed(*given):
        if len(made) == made.last:
            raise KeyboardInterrupt
        made.append(given)
        return segmentation.watershed(*given)

    made = Made()
    monkeypatch.setattr("ffn.evaluation.baseline.watershed", watershed)
    return made


@pytest.mark.parametrize("finished", [3, 11])
def test_a_killed_sweep_goes_on_after_the_finished_settings(tmp_path, specs, image, made, finished):
    command = ["evaluate", "--segmentation", specs[0], "--truth", specs[1], "--image", image]
    outs = [tmp_path / f"{name}/s.json" for name in ("whole", "killed")]
    assert main([*command, "--out", str(outs[0])]) == 0
    made.clear()
    made.last = finished
    assert main([*command, "--out", str(outs[1])]) == 130
    made.last = None
    assert main([*command, "--out", str(outs[1])]) == 0
    assert len(SWEEP) <= len(made) <= len(SWEEP) + 1, "of finished settings, only the best is made again"
    assert len({out.read_bytes() for out in outs}) == 1
    assert sorted(path.suffix for path in outs[1].parent.iterdir()) == [".csv", ".csv", ".json"]


def test_a_sweep_of_another_box_or_a_damaged_one_does_not_count(tmp_path, specs, image, made):
    command = ["evaluate", "--segmentation", specs[0], "--truth", specs[1], "--image", image]
    whole, killed = tmp_path / "whole.json", tmp_path / "killed.json"
    assert main([*command, "--box", "1:9,0:18,2:28", "--out", str(whole)]) == 0
    for damage in (False, True):
        made.clear()
        made.last = 5
        assert main([*command, "--box", "1:9,0:18,2:28" if damage else "0:9,0:18,2:28", "--out", str(killed)]) == 130
        for file in killed.with_name("killed.json.blocks").rglob("sweep.json") if damage else ():
            file.write_text("[]")
        made.last = None
        assert main([*command, "--box", "1:9,0:18,2:28", "--out", str(killed)]) == 0
        assert len(made) == 5 + len(SWEEP)
        assert killed.read_bytes() == whole.read_bytes()


def test_the_watershed_is_also_scored_on_the_voxels_that_each_segmentation_covers(tmp_path, specs, image, segmentation):
    kept = f"{tmp_path / 'base.h5'}:segmentation"
    half = segmentation.copy()
    half[:, :9] = 0
    references = References(image=image, baseline_out=kept, earlier={"base": write(tmp_path / "half.h5", half)})
    result = evaluate(*specs, tmp_path / "s.json", EvaluateConfig(), references=references)
    with open_volume(kept) as volume:
        watershed = volume.read()
    same = write(tmp_path / "same.h5", np.where(half > 0, watershed, 0), size=SIZE_ZYX_NM)
    alone = evaluate(same, specs[1], tmp_path / "t.json", EvaluateConfig(watershed=False))
    part = result["baseline"]["same_voxels"]["base"]
    assert part["covered_fraction"] == result["earlier"]["base"]["covered_fraction"] < 0.6
    assert part["scores"]["foreground"] == alone["scores"]["foreground"] != result["baseline"]["scores"]["foreground"]


def test_a_large_box_gets_watersheds_of_its_middle_only(tmp_path, specs, image):
    config = EvaluateConfig(watershed_max_voxels=5040 // 8)
    result = evaluate(*specs, tmp_path / "s.json", config, None, References(image=image))
    baseline = result["baseline"]
    assert baseline["box"] == "2:7,4:13,7:21"
    middle = evaluate(*specs, tmp_path / "t.json", EvaluateConfig(), Box.parse(baseline["box"]))
    assert baseline["beside"]["scores"] == middle["scores"] != result["scores"]


def test_a_middle_without_a_body_is_an_error_that_names_the_limit(tmp_path, specs, image, truth, capsys):
    truth[1:9, 3:15, 6:22] = 0
    labels = write(tmp_path / "hollow.h5", truth, size=SIZE_ZYX_NM)
    arguments = ["--segmentation", specs[0], "--truth", labels, "--image", image, "--watershed-max-voxels", "630"]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 2
    told = capsys.readouterr().err
    assert "the truth has no labelled voxel in 2:7,4:13,7:21, the middle of" in told and "watershed_max_voxels" in told


def test_a_middle_without_a_skeleton_has_no_run_length(tmp_path, specs, image):
    nodes = np.array([[0.5, 8, 0.5], [0.5, 8, 3.5]]) * SIZE_ZYX_NM
    join([Skeleton(1, nodes, np.array([[0, 1]]))]).write(tmp_path / "corner.h5", {})
    references = References(image=image, skeletons=str(tmp_path / "corner.h5"))
    result = evaluate(*specs, tmp_path / "s.json", EvaluateConfig(watershed_max_voxels=630), None, references)
    assert "erl" in result and "voi" in result["baseline"]["scores"]["all"]
    assert "erl" not in result["baseline"] and "erl" not in result["baseline"]["beside"]


def test_the_watershed_can_be_left_out(tmp_path, specs, image):
    arguments = ["--segmentation", specs[0], "--truth", specs[1], "--image", image, "--no-watershed"]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 0
    assert "baseline" not in json.loads((tmp_path / "s.json").read_text())


@pytest.mark.parametrize(("max_voxels", "expected"), [(4096, "1:9,0:16,-4:28"), (512, "3:7,4:12,4:20")])
def test_the_middle_keeps_the_proportions(max_voxels, expected):
    assert str(middle_of(Box.parse("1:9,0:16,-4:28"), max_voxels)) == expected
