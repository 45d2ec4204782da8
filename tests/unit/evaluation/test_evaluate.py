import json

import numpy as np
import pytest
from skimage import metrics

from ffn.cli import main
from ffn.errors import EvaluationError, FfnError
from ffn.evaluation.border import near_border
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import References, evaluate
from ffn.geometry import Box
from ffn.io.hdf5_volume import create_volume
from ffn.io.open import open_volume
from ffn.io.volume import Placement

SIZE_ZYX_NM = (30.0, 10.0, 20.0)


def write(path, dataset, voxels, offset_zyx=(0, 0, 0), size_zyx_nm=SIZE_ZYX_NM):
    box = Box.from_shape(voxels.shape, offset_zyx)
    with create_volume(f"{path}:{dataset}", voxels.dtype, Placement(box, size_zyx_nm)) as writer:
        writer.write(box, voxels)
    return f"{path}:{dataset}"


@pytest.fixture
def truth():
    labels = np.arange(1, 25).reshape(2, 3, 4).repeat(5, 0).repeat(6, 1).repeat(7, 2).astype(np.uint64)
    labels[:, 0] = 0
    return labels


@pytest.fixture
def segmentation(truth):
    labels = truth * 3
    labels[:, :9][labels[:, :9] == 15] = 999  # a split
    labels[labels == 21] = 24  # a merger
    labels[:, :, 20:] = 0
    return labels


@pytest.fixture
def specs(tmp_path, truth, segmentation):
    return write(tmp_path / "seg.h5", "segmentation", segmentation), write(tmp_path / "labels.h5", "labels", truth)


def test_scores_have_the_documented_keys(tmp_path, specs):
    assert main(["evaluate", "--segmentation", specs[0], "--truth", specs[1], "--out", str(tmp_path / "s.json")]) == 0
    result = json.loads((tmp_path / "s.json").read_text())
    assert result["scores"].keys() == {"foreground", "all", "cremi"}
    keys = {"are", "are_precision", "are_recall", "voi", "voi_split", "voi_merge"}
    assert all(scores.keys() == keys for scores in result["scores"].values())
    assert result["num_truth"] == 24
    assert 0.5 < result["covered_fraction"] < 1
    assert result["box"] == "0:10,0:18,0:28"
    assert "baseline" not in result


def test_only_the_common_box_is_compared(tmp_path, truth, segmentation):
    """The segmentation starts inside the truth and ends outside of it; --box cuts further."""
    moved = np.pad(segmentation[2:, 3:, 4:], ((0, 3), (0, 0), (0, 5)), constant_values=77)
    inputs = (
        write(tmp_path / "seg.h5", "segmentation", moved, (102, 203, 304)),
        write(tmp_path / "labels.h5", "labels", truth, (100, 200, 300)),
    )
    result = evaluate(*inputs, tmp_path / "s.json", EvaluateConfig(), Box.parse("0:999,205:999,0:320"))
    assert result["box"] == "102:110,205:218,304:320"
    true, test = truth[2:, 5:, 4:20], segmentation[2:, 5:, 4:20]
    expected = metrics.adapted_rand_error(true, test, ignore_labels=(0,))[0]
    assert result["scores"]["all"]["are"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("border_nm", [0.0, 25.0])
def test_the_block_size_does_not_matter(tmp_path, specs, border_nm):
    results = [
        evaluate(*specs, tmp_path / "s.json", EvaluateConfig(block_size_zyx=block, border_nm=border_nm))
        for block in ((100, 100, 100), (3, 5, 4))
    ]
    assert results[0] | {"provenance": None} == results[1] | {"provenance": None}


def test_the_border_band_changes_cremi_alone(tmp_path, specs):
    without, narrow = (
        evaluate(*specs, tmp_path / "s.json", EvaluateConfig(border_nm=nm))["scores"] for nm in (0.0, 10.0)
    )
    assert without["all"] == narrow["all"]
    assert without["cremi"] != narrow["cremi"]


def test_the_border_band_is_measured_in_nanometres_within_a_section():
    labels = np.ones((2, 9, 11), np.uint64)
    labels[0, :, 6:] = 2
    band = near_border(labels, 20.0, SIZE_ZYX_NM)
    assert not band[1].any()  # sections do not see each other
    assert np.flatnonzero(band[0, 4]).tolist() == [
        4,
        5,
        6,
        7,
    ]  # x: the two voxels at the border, and 20 nm more
    turned = near_border(labels.transpose(0, 2, 1), 20.0, SIZE_ZYX_NM)
    assert np.flatnonzero(turned[0, :, 4]).tolist() == [3, 4, 5, 6, 7, 8]  # y: 10 nm voxels, two more


def test_a_given_baseline_is_scored_alike(tmp_path, specs, truth):
    perfect = write(tmp_path / "other.h5", "segmentation", truth)
    result = evaluate(*specs, tmp_path / "s.json", EvaluateConfig(), None, References(baseline=perfect))
    assert result["baseline"]["scores"]["all"]["voi"] == 0
    assert result["baseline"]["covered_fraction"] == 1
    assert result["baseline"]["method"] == perfect


def test_the_watershed_is_scored_and_kept(tmp_path, specs, truth):
    edges = np.stack([abs(np.gradient(truth.astype(float), axis=axis)) > 0 for axis in (1, 2)]).any(0)
    image = write(tmp_path / "raw.h5", "raw", np.where(edges, 50, 200).astype(np.uint8))
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
def image(tmp_path, truth):
    edges = np.stack([abs(np.gradient(truth.astype(float), axis=axis)) > 0 for axis in (1, 2)]).any(0)
    return write(tmp_path / "raw.h5", "raw", np.where(edges, 50, 200).astype(np.uint8))


def test_a_large_box_gets_watersheds_of_its_middle_only(tmp_path, specs, image):
    config = EvaluateConfig(watershed_max_voxels=5040 // 8)
    result = evaluate(*specs, tmp_path / "s.json", config, None, References(image=image))
    baseline = result["baseline"]
    assert baseline["box"] == "2:7,4:13,7:21"
    middle = evaluate(*specs, tmp_path / "t.json", EvaluateConfig(), Box.parse(baseline["box"]))
    assert baseline["beside"]["scores"] == middle["scores"] != result["scores"]


def test_the_watershed_can_be_left_out(tmp_path, specs, image):
    arguments = ["--segmentation", specs[0], "--truth", specs[1], "--image", image, "--no-watershed"]
    assert main(["evaluate", *arguments, "--out", str(tmp_path / "s.json")]) == 0
    assert "baseline" not in json.loads((tmp_path / "s.json").read_text())


def test_errors_and_bodies_are_written_beside_the_scores(tmp_path, specs, truth, segmentation):
    result = evaluate(*specs, tmp_path / "s.json", EvaluateConfig(num_errors=3))
    (split,) = result["errors"]
    assert split["kind"] == "split" and split["truth_ids"] == [5] and set(split["segment_ids"]) == {15, 999}
    z, y, x = split["position_zyx"]
    assert truth[z, y, x] == split["truth_ids"][0] and segmentation[z, y, x] == split["segment_ids"][1]
    assert (tmp_path / "s-errors.csv").read_text().count("\n") == 1 + 1
    bodies = (tmp_path / "s-bodies.csv").read_text().splitlines()
    assert bodies[0] == "kind,id,voxels,parts,voi,share" and bodies[1].split(",")[1] == "5"


def make_unsized(path):
    from ffn.io import hdf5

    hdf5.write_arrays(path, {"labels": np.ones((4, 5, 6), np.uint64)}, {})
    return f"{path}:labels"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, s, p: {"--segmentation": str(p / "none.h5:segmentation")}, "none.h5: no such file"),
        (
            lambda t, s, p: {"--truth": str(p / "labels.h5:stack")},
            "expected dataset 'stack', found .'labels'",
        ),
        (
            lambda t, s, p: {"--segmentation": write(p / "f.h5", "s", s.astype(np.float32))},
            "expected integer labels",
        ),
        (
            lambda t, s, p: {"--truth": write(p / "f.h5", "s", t.astype(np.float32))},
            "expected integer labels",
        ),
        (
            lambda t, s, p: {"--segmentation": write(p / "f.h5", "s", s, (50, 0, 0))},
            r"covers 50:60,0:18,0:28 and the truth .* covers 0:10,0:18,0:28",
        ),
        (
            lambda t, s, p: {"--box": "10:12,0:18,0:28"},
            "--box: 10:12,0:18,0:28 lies outside 0:10,0:18,0:28",
        ),
        (
            lambda t, s, p: {"--truth": write(p / "f.h5", "s", t * 0)},
            "has no labelled voxel in 0:10,0:18,0:28",
        ),
        (lambda t, s, p: {"--box": "0:10,0:1,0:28"}, "has no labelled voxel in 0:10,0:1,0:28"),
        (lambda t, s, p: {"--border": "-1"}, "--border: found '-1'"),
        (lambda t, s, p: {"--baseline-out": "b.h5:segmentation"}, "which needs --image"),
        (lambda t, s, p: {"--image": write(p / "f.h5", "s", t[:5])}, "outside of the volume 0:5,0:18,0:28"),
        (
            lambda t, s, p: {"--baseline": write(p / "f.h5", "s", t[:5])},
            "outside of the volume 0:5,0:18,0:28",
        ),
        (lambda t, s, p: {"--out": str(p)}, "is a folder"),
        (
            lambda t, s, p: {"--out": str(p / "labels.h5" / "s.json")},
            "labels.h5 is not a writable folder",
        ),
        (
            lambda t, s, p: dict.fromkeys(("--truth", "--segmentation"), make_unsized(p / "u.h5")) | {"--border": "20"},
            "20.0 nm cannot be measured",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, specs, truth, segmentation, change, message, capsys):
    options = {
        "--segmentation": specs[0],
        "--truth": specs[1],
        "--out": str(tmp_path / "out" / "scores.json"),
    }
    options |= change(truth, segmentation, tmp_path)
    assert main(["evaluate", *(word for pair in options.items() for word in pair)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ffn: error: ")]
    assert len(lines) == 1
    with pytest.raises(FfnError, match=message):
        raise FfnError(lines[0])
    assert not (tmp_path / "out").exists()


def test_a_file_that_cannot_be_replaced_is_an_error(tmp_path, specs, monkeypatch):
    def refuse(path, content):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ffn.evaluation.evaluate.write_json", refuse)
    with pytest.raises(EvaluationError, match=r"s.json: cannot be written .*Permission denied"):
        evaluate(*specs, tmp_path / "s.json", EvaluateConfig())
