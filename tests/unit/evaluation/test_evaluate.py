"""Segmentations are scored against the ground truth, where the two overlap."""

import json

import numpy as np
import pytest
from skimage import metrics

from ffn.cli import main
from ffn.config import Mask
from ffn.errors import VolumeError
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import Inputs, evaluate
from ffn.evaluation.scoring import near_border
from ffn.evaluation.skeletonize import Skeletons, join
from ffn.geometry import Box
from ffn.io import hdf5
from ffn.io.volume import IGNORED, NO_SIZE

from ...jobs import require_same_files, running
from ..volumes import write
from .conftest import SIZE_ZYX_NM, TUBE_SIZE_NM, line
from .conftest import SIZE_ZYX_NM as SIZE


def scored(out, segmentation, truth, config=EvaluateConfig(), box=None, **others):  # noqa: B008 (frozen)
    """Return the scores, without their provenance."""
    result = evaluate(Inputs(segmentation, truth, **others), out / "s.json", config, box)
    del result["provenance"]
    return result


def test_only_the_common_box_is_compared(tmp_path, truth, segmentation):
    """The segmentation starts inside the ground truth and ends outside of it; --box cuts further."""
    moved = np.pad(segmentation[2:, 3:, 4:], ((0, 3), (0, 0), (0, 5)), constant_values=77)
    inputs = (write(tmp_path / "seg.h5", moved, (102, 203, 304)), write(tmp_path / "labels.h5", truth, (100, 200, 300)))
    result = scored(tmp_path, *inputs, box=Box.parse("0:999,205:999,0:320"))
    assert result["box"] == "102:110,205:218,304:320"
    true, test = truth[2:, 5:, 4:20], segmentation[2:, 5:, 4:20]
    expected = metrics.adapted_rand_error(true, test, ignore_labels=(0,))[0]
    assert result["scores"]["all"]["are"] == pytest.approx(expected, abs=1e-9)


def test_ignored_voxels_count_like_those_without_a_label_but_for_cremi(tmp_path, truth, segmentation, monkeypatch):
    monkeypatch.setattr("ffn.evaluation.scoring.BORDER_NM", 10.0)
    ignored = truth % 3 == 0
    kinds = (0, np.uint64), (IGNORED, np.uint64), (-1, np.int64), (2**64 - 3, np.uint64), (-3, np.int64)
    spec = write(tmp_path / "seg.h5", segmentation, size=SIZE)
    unlabelled, *results = [
        scored(tmp_path, spec, write(tmp_path / "labels.h5", np.where(ignored, value, truth).astype(dtype), size=SIZE))
        for value, dtype in kinds
    ]
    assert all(result == results[0] for result in results[1:])
    assert unlabelled["num_truth"] == results[0]["num_truth"] < len(np.unique(truth)) - 1
    same = {name: unlabelled["scores"][name] == results[0]["scores"][name] for name in unlabelled["scores"]}
    assert same == {"foreground": True, "all": True, "cremi": False}


def test_negative_ids_of_a_segmentation_are_no_segments(tmp_path, truth, segmentation):
    truth_spec = write(tmp_path / "labels.h5", truth)
    results = []
    for nothing in (0, -1):
        spec = write(tmp_path / "seg.h5", np.where(segmentation == 0, nothing, segmentation.astype(np.int64)))
        results.append(scored(tmp_path, spec, truth_spec, earlier={"base": spec}))
    assert 0 < results[0]["covered_fraction"] < 1
    assert results[1] == results[0]


def test_another_place_or_grey_levels_are_not_scored_unnoticed(tmp_path, specs, segmentation, caplog):
    """The same voxel numbers are other places."""
    coarse = write(tmp_path / "mip1.h5", segmentation[:, ::2, ::2], size=(30.0, 20.0, 40.0))
    with pytest.raises(VolumeError, match="mip1.h5"):
        scored(tmp_path, coarse, specs[1])
    grey = np.random.default_rng(1).integers(1, 250, segmentation.shape, np.uint8)
    scored(tmp_path, specs[0], specs[1])
    assert caplog.messages == []
    scored(tmp_path, write(tmp_path / "grey.h5", grey, size=SIZE), specs[1])
    scored(tmp_path, write(tmp_path / "crop.h5", segmentation[2:], size=SIZE), specs[1])
    assert [message.split(":")[0] for message in caplog.messages] == [f"{tmp_path}/{n}.h5" for n in ("grey", "crop")]


def test_a_voxel_size_may_be_missing_in_image_or_truth(tmp_path, specs, segmentation, truth, caplog):
    """`segment` took it for 10 nm, with a warning, and wrote that; the flood would have to be made again."""
    bare = write(tmp_path / "bare.h5", segmentation, size=NO_SIZE)
    scores = [scored(tmp_path, spec, specs[1])["scores"] for spec in (bare, specs[0])]
    assert scores[0] == scores[1]
    sizeless = [f"{tmp_path / name}.h5:labels" for name in ("sizeless-truth", "sizeless-segmentation")]
    for spec, voxels in zip(sizeless, (truth, segmentation), strict=True):
        hdf5.write_arrays(spec.removesuffix(":labels"), {"labels": voxels}, {})
    found, expected = scored(tmp_path, sizeless[1], sizeless[0]), scored(tmp_path, *specs)["scores"]
    assert found["scores"] == {name: expected[name] for name in ("foreground", "all")}
    assert found["cremi_score"] is None and "cremi" in caplog.text


def test_a_mask_covers_what_is_scored_and_need_not_cover_what_is_around(tmp_path, specs, monkeypatch):
    monkeypatch.setattr("ffn.evaluation.scoring.BORDER_NM", 10.0)
    scored_box = Box((0, 0, 3), (10, 9, 20))
    mask = write(tmp_path / "mask.h5", np.zeros(scored_box.shape, np.uint8), scored_box.start, SIZE)
    masks = (Mask(path=mask),)
    found = scored(tmp_path, *specs, box=scored_box, masks=masks)
    assert found["box"] == str(scored_box) and found["scores"]["cremi"]["voi"] is not None
    with pytest.raises(VolumeError, match="mask.h5:mask"):
        scored(tmp_path, *specs, box=scored_box.grow((0, 1, 0)), masks=masks)


def test_masked_voxels_count_like_ignored_ones(tmp_path, truth, segmentation, monkeypatch):
    monkeypatch.setattr("ffn.evaluation.scoring.BORDER_NM", 10.0)
    masked, ignored = Box((0, 0, 3), (10, 9, 20)), truth.copy()
    ignored[masked.slices()] = IGNORED
    specs = [write(tmp_path / f"{name}.h5", one, size=SIZE) for name, one in (("seg", segmentation), ("labels", truth))]
    found = evaluate(Inputs(*specs, masks=(Mask(box=str(masked)),)), tmp_path / "s.json", EvaluateConfig())
    assert found.pop("provenance")["inputs"]["masks"] == f"#box={masked}"
    assert found["scores"]["cremi"]["voi"] is not None
    assert found == scored(tmp_path, specs[0], write(tmp_path / "ignored.h5", ignored, size=SIZE))


def test_earlier_segmentations_are_scored_side_by_side(tmp_path, specs, truth, segmentation):
    """The base has a split that agglomeration repairs, and the last volume is filled."""
    merged = np.where(segmentation == 999, 15, segmentation)
    earlier = [f"base={specs[0]}", f"agglomerated={write(tmp_path / 'merged.h5', merged, size=SIZE)}"]
    filled = write(tmp_path / "filled.h5", truth, size=SIZE)
    words = ["--segmentation", filled, "--name", "filled", "--truth", specs[1]]
    words += [f"--earlier={one}" for one in earlier]
    assert main(["evaluate", *words, "--out", str(tmp_path / "s.json")]) == 0
    result = json.loads((tmp_path / "s.json").read_text())
    alone = scored(tmp_path, *specs)
    base, agglomerated = result["earlier"]["base"], result["earlier"]["agglomerated"]
    assert result["segmentation"] == "filled" and list(result["earlier"]) == ["base", "agglomerated"]
    assert all(base[key] == alone[key] for key in ("scores", "intervals", "covered_fraction", "cremi_score"))
    assert agglomerated["scores"]["foreground"]["voi_split"] == 0 < base["scores"]["foreground"]["voi_split"]
    assert result["scores"]["all"]["voi"] == 0 and result["covered_fraction"] == 1 > base["covered_fraction"]
    low, high = base["intervals"]["all"]["voi"]
    assert low < base["scores"]["all"]["voi"] < high


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t, s, p: {"--segmentation": write(p / "f.h5", s.astype(np.float32))}, "f.h5"),
        (lambda t, s, p: {"--segmentation": write(p / "f.h5", s, (50, 0, 0), SIZE)}, "50:60,0:18,0:28"),
        (lambda t, s, p: {"--box": "10:12,0:18,0:28"}, "--box: 10:12"),
        (lambda t, s, p: {"--truth": write(p / "f.h5", t * 0, size=SIZE)}, "0:10,0:18,0:28"),
        (lambda t, s, p: {"--earlier": "base"}, "--earlier: found 'base'"),
        (lambda t, s, p: {"--earlier": f"base={write(p / 'f.h5', s[:5])}"}, "0:5,0:18,0:28"),
        (lambda t, s, p: {"--earlier": f"base={p / 'seg.h5'}:segmentation", "--name": "base"}, "--earlier: 'base'"),
        (lambda t, s, p: {"--baseline-out": "b.h5:segmentation"}, "--baseline-out"),
        (lambda t, s, p: join([line(900, 4)]).write(p / "h.h5", {}) or {"--skeletons": f"{p}/h.h5"}, "--skeletons"),
    ],
)
def test_bad_input_is_one_line(tmp_path, specs, truth, segmentation, change, named, capsys):
    options = {"--segmentation": specs[0], "--truth": specs[1], "--out": str(tmp_path / "out" / "scores.json")}
    options |= change(truth, segmentation, tmp_path)
    assert main(["evaluate", *(word for pair in options.items() for word in pair)]) == 2
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("ffn: error: "))
    assert named in line
    assert not (tmp_path / "out/scores.json").exists()


@pytest.mark.parametrize("place", ["out", "baseline_out"])
def test_an_input_is_never_overwritten(tmp_path, specs, image, place):
    written = {"out": tmp_path / "s.json", "baseline_out": f"{tmp_path}/b.h5:b"}
    for victim in (*specs, image, write(tmp_path / "earlier.h5", np.ones((10, 18, 28), np.uint64))):
        file = victim.partition(":")[0]
        content = (tmp_path / file).read_bytes()
        chosen = written | {place: file if place == "out" else f"{file}:b"}
        earlier = {"base": f"{tmp_path}/earlier.h5:earlier"}
        inputs = Inputs(*specs, image=image, baseline_out=chosen["baseline_out"], earlier=earlier)
        with pytest.raises(VolumeError, match=file):
            evaluate(inputs, chosen["out"], EvaluateConfig())
        assert (tmp_path / file).read_bytes() == content


@pytest.fixture
def command(tmp_path, specs, image, segmentation, monkeypatch):
    """Words that score two segmentations, with skeletons, masks and a baseline, in six blocks."""
    monkeypatch.setattr("ffn.evaluation.scoring.blocks_of", lambda placed, _: list(placed.box.blocks((10, 6, 14))))
    skeletons = str(tmp_path / "skeletons.h5")
    words = ["--min-voxels", "50", "--spacing", "10", "--out", skeletons]
    assert main(["skeletonize", "--labels", specs[1], *words]) == 0
    earlier = write(tmp_path / "earlier.h5", np.where(segmentation == 999, 15, segmentation), size=SIZE)
    options = ["--segmentation", specs[0], "--name", "filled", "--earlier", f"base={earlier}", "--truth", specs[1]]
    return ["evaluate", *options, "--skeletons", skeletons, "--image", image, "--masks", "#box=0:2,0:18,0:28"]


def test_jobs_and_killed_ones_give_the_bytes_of_one_process(tmp_path, command):
    made = require_same_files(running(command, "s.json"), tmp_path, ["2-of-2", "1-of-2", ""])
    assert {"erl", "errors", "baseline"} <= json.loads(made["s.json"]).keys()


@pytest.mark.parametrize(
    ("change", "is_anew"),
    [
        (["--no-watershed"], False),
        (["--box", "0:9,0:18,0:28"], True),
        (["--masks", "#box=0:1,0:18,0:28"], True),
        (["--earlier", "first=x.h5"], True),
    ],
)
def test_another_segmentation_is_compared_anew(tmp_path, command, specs, change, is_anew, caplog):
    change = [word.replace("x.h5", specs[1]) for word in change]
    with caplog.at_level("INFO"):
        for options in ([], change):
            assert main([*command, *options, "--job", "1-of-1", "--out", f"{tmp_path}/s.json"]) == 0
    assert ("6 of 6" in caplog.text) == (not is_anew)


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
    assert not length or scores["erl_tolerant"]["tolerance_nm"] == 200
    assert found["length_nm"] == length and found["nerl"] == (length and pytest.approx(1))


def test_the_border_band_is_measured_in_nanometres_within_a_section():
    labels = np.ones((2, 9, 11), np.uint64)
    labels[0, :, 6:] = 2
    band = near_border(labels, 20.0, SIZE_ZYX_NM)
    assert not band[1].any()  # only the own section counts
    assert np.flatnonzero(band[0, 4]).tolist() == [4, 5, 6, 7]  # x: the two voxels at the border, and 20 nm more
    turned = near_border(labels.transpose(0, 2, 1), 20.0, SIZE_ZYX_NM)
    assert np.flatnonzero(turned[0, :, 4]).tolist() == [3, 4, 5, 6, 7, 8]  # y: 10 nm voxels, two more
