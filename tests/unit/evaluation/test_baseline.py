"""The watershed baseline finds clear membranes and is scored like the segmentation."""

import json

import numpy as np
import pytest
from scipy import ndimage

from ffn.cli import main
from ffn.contingency import count_pairs
from ffn.evaluation.baseline import SWEEP, Settings, best_watershed, watersheds
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import Inputs, evaluate
from ffn.evaluation.scores import score
from ffn.evaluation.skeletonize import Skeleton, join
from ffn.geometry import Box
from ffn.io.open import open_volume

from ..volumes import write
from .conftest import SIZE_ZYX_NM


@pytest.fixture(scope="module")
def tissue():
    """Image and labels of six bodies between dark membranes, sections twice as thick as a pixel."""
    labels = np.zeros((12, 40, 60), np.uint64)
    for body, (y, x) in enumerate(np.ndindex(2, 3), start=1):
        labels[:, 20 * y : 20 * y + 20, 20 * x : 20 * x + 20] = body
    membrane = ndimage.maximum_filter(labels, (1, 3, 3)) != ndimage.minimum_filter(labels, (1, 3, 3))
    image = np.where(membrane, 60, 160) + np.random.default_rng(0).normal(0, 15, labels.shape)
    return image.clip(0, 255).astype(np.uint8), labels


def test_clear_membranes_are_found_and_the_best_setting_comes_first(tissue):
    segmentation, sweep = best_watershed(*tissue, (20.0, 10.0, 10.0))
    scores = score(count_pairs(tissue[1], segmentation), "all")
    assert segmentation.min() > 0
    assert scores["are"] < 0.05
    assert len(sweep) == len(SWEEP) and sweep[0]["voi"] == pytest.approx(scores["voi"])
    assert [entry["voi"] for entry in sweep] == sorted(entry["voi"] for entry in sweep)
    assert sweep[0]["settings"].keys() == {"sigma_nm", "level", "distance_nm"}


def test_lengths_are_nm_whatever_the_voxel_size():
    """The same tissue imaged with half the voxels along each axis has the same markers and bodies."""
    image = np.full((24, 32, 40), 50, np.uint8)
    image[8:16, 4:14, 4:36] = image[8:16, 18:28, 4:36] = 200
    fine, coarse = (dict(watersheds(image[::n, ::n, ::n], (5.0 * n,) * 3)) for n in (1, 2))
    setting = Settings(10.0, 0.0, 10.0)
    assert (fine[setting][::2, ::2, ::2] == coarse[setting]).mean() > 0.9 and coarse[setting].max() == 2
    # A slab of 3 sections is thin if a section is as thick as a pixel, and thick if it is as thick as 4.
    image = np.full((15, 32, 48), 50, np.uint8)
    image[6:9] = 200
    thin, thick = (dict(watersheds(image, (z, 10.0, 10.0)))[Settings(6.0, 0.0, 30.0)] for z in (10.0, 40.0))
    assert not thin.any()
    assert (thick == 1).all()


def test_the_watershed_is_scored_and_saved(tmp_path, specs, image):
    arguments = ["--segmentation", specs[0], "--truth", specs[1], "--image", image, "--box", "1:9,0:18,2:28"]
    kept = f"{tmp_path / 'base.zarr'}"
    assert main(["evaluate", *arguments, "--baseline-out", kept, "--out", str(tmp_path / "s.json")]) == 0
    baseline = json.loads((tmp_path / "s.json").read_text())["baseline"]
    assert baseline["sweep"][0]["settings"] == baseline["settings"]
    assert baseline["sweep"][0]["voi"] == pytest.approx(baseline["scores"]["all"]["voi"])
    with open_volume(kept) as volume:
        assert volume.box == Box.parse("1:9,0:18,2:28")
        assert volume.voxel_size_zyx_nm == SIZE_ZYX_NM
    again = evaluate(Inputs(kept, specs[1]), tmp_path / "t.json", EvaluateConfig(), volume.box)
    assert again["scores"] == baseline["scores"]


def test_the_watershed_is_also_scored_on_the_voxels_that_each_segmentation_covers(tmp_path, specs, image, segmentation):
    kept = f"{tmp_path / 'base.zarr'}"
    half = segmentation.copy()
    half[:, :9] = 0
    inputs = Inputs(*specs, image=image, baseline_out=kept, earlier={"base": write(tmp_path / "half.h5", half)})
    result = evaluate(inputs, tmp_path / "s.json", EvaluateConfig())
    with open_volume(kept) as volume:
        watershed = volume.read()
    same = write(tmp_path / "same.h5", np.where(half > 0, watershed, 0), size=SIZE_ZYX_NM)
    alone = evaluate(Inputs(same, specs[1]), tmp_path / "t.json", EvaluateConfig())
    part = result["baseline"]["same_voxels"]["base"]
    assert part["covered_fraction"] == result["earlier"]["base"]["covered_fraction"] < 0.6
    assert part["scores"]["foreground"] == alone["scores"]["foreground"] != result["baseline"]["scores"]["foreground"]


def test_a_large_box_gets_watersheds_of_its_middle_only(tmp_path, specs, image):
    config = EvaluateConfig(watershed_max_voxels=5040 // 8)
    result = evaluate(Inputs(*specs, image=image), tmp_path / "s.json", config)
    baseline = result["baseline"]
    assert baseline["box"] == "2:7,4:13,7:21"
    middle = evaluate(Inputs(*specs), tmp_path / "t.json", EvaluateConfig(), Box.parse(baseline["box"]))
    assert baseline["beside"]["scores"] == middle["scores"] != result["scores"]


def test_a_middle_without_a_body_or_skeleton(tmp_path, specs, image, truth, capsys):
    truth[1:9, 3:15, 6:22] = 0
    labels = write(tmp_path / "hollow.h5", truth, size=SIZE_ZYX_NM)
    arguments = ["--segmentation", specs[0], "--truth", labels, "--image", image, "--watershed-max-voxels", "630"]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 2
    assert "watershed_max_voxels" in capsys.readouterr().err
    nodes = np.array([[0.5, 8, 0.5], [0.5, 8, 3.5]]) * SIZE_ZYX_NM
    join([Skeleton(1, nodes, np.array([[0, 1]]))]).write(tmp_path / "corner.h5", {})
    inputs = Inputs(*specs, image=image, skeletons=str(tmp_path / "corner.h5"))
    result = evaluate(inputs, tmp_path / "s.json", EvaluateConfig(watershed_max_voxels=630))
    assert "erl" in result and "erl" not in result["baseline"] and "erl" not in result["baseline"]["beside"]
