"""The probability that two segments are one neuron, fitted to decision points of a labelled part."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from ffn.assembly.calibration import FEATURES, CalibrationError, features, fit, quality, read_scored
from ffn.assembly.contacts import Contact
from ffn.assembly.merge_graph import Evidence, MergeEdge, header
from ffn.cli import main

from ..volumes import write


def edge(a, b, agreement, crossing=(0.5, 0.5), z=1):
    evidence = Evidence(90, 8000, 4.5, 3.5, 1, 2, 30, 40, 0.9, *crossing, 0.7, agreement, 0.5, 0.25, 0.0, 0.125)
    return MergeEdge.of(Contact(a, b, (z, 2, 3), 130.25, 40, 500), evidence, 0.0)


def examples(num=400, slope=4.0):
    """Decision points whose chance of being one neuron is a logistic function of their agreement."""
    rng = np.random.default_rng(0)
    agreement = rng.random(num)
    same = rng.random(num) < 1 / (1 + np.exp(-slope * (agreement - 0.5)))
    return [edge(1, 2, float(value)) for value in agreement], same


def test_the_fit_finds_the_probability_that_made_the_examples():
    edges, same = examples(4000)
    found = fit(edges, same, penalty=1e-3)
    for agreement in (0.1, 0.5, 0.9):
        (probability,) = found.probabilities([edge(1, 2, agreement)])
        assert probability == pytest.approx(1 / (1 + np.exp(-4 * (agreement - 0.5))), abs=0.04)
    assert set(found.features) == FEATURES == set(features(edges[0]))


def test_sizes_contact_depth_and_brightness_tell_where_the_scores_do_not():
    one = edge(1, 2, 0.5)
    small = replace(one.evidence, voxels_a=9, voxels_b=99)
    for names, other in (
        (("smaller", "larger"), replace(one, evidence=small)),
        (("contact", "depth"), replace(one, contact_faces=9)),
        (("depth",), replace(one, overlap_voxels=4000)),
        (("brightness",), replace(one, brightness=90.0)),
    ):
        before, after = features(one), features(other)
        assert {name for name in FEATURES if before[name] != after[name]} == set(names)
        found = fit([one, other], np.array([True, False]), 1.0, names).probabilities([one, other])
        assert found[0] > 0.6 and found[1] < 0.4


def test_which_segment_comes_first_does_not_matter():
    one = edge(1, 2, 0.5, (0.9, 0.1))
    e = one.evidence
    turned = replace(e, voxels_a=e.voxels_b, voxels_b=e.voxels_a, radius_a=e.radius_b, radius_b=e.radius_a)
    turned = replace(turned, fovs_a=e.fovs_b, fovs_b=e.fovs_a, recovered_aa=e.recovered_bb, recovered_bb=e.recovered_aa)
    turned = replace(turned, recovered_ab=e.recovered_ba, recovered_ba=e.recovered_ab)
    assert features(one) == features(replace(one, evidence=turned))


def test_known_probabilities_have_their_quality_and_one_kind_is_refused():
    figures = quality(np.array([0.9, 0.6, 0.6, 0.1]), np.array([True, True, False, False]))
    assert figures["auc"] == pytest.approx(3.5 / 4) and figures["brier"] == pytest.approx((0.02 + 0.16 + 0.36) / 4)
    assert figures["log_loss"] == pytest.approx(-np.log([0.9, 0.6, 0.4, 0.9]).mean())
    assert np.isnan(quality(np.array([0.9]), np.array([True]))["auc"])
    edges, same = examples()
    with pytest.raises(CalibrationError, match="400 of 400"):
        fit(edges, np.ones_like(same), 1.0)


@pytest.fixture
def scene(tmp_path):
    """Segments 1 to 40 in a row, of which every two are one body, and the scores say so."""
    segments = np.arange(1, 41, dtype=np.uint64).reshape(40, 1, 1).repeat(4, 1).repeat(4, 2)
    truth = (segments + 1) // 2
    edges = [edge(a, a + 1, 0.8 if a % 2 else 0.3, z=a) for a in range(1, 40)]
    (tmp_path / "graph.csv").write_text(header({}) + "".join(e.row() + "\n" for e in edges))
    specs = write(tmp_path / "base.zarr", segments), write(tmp_path / "truth.zarr", truth)
    return tmp_path, ["calibrate", f"{tmp_path}/graph.csv", "--segmentation", specs[0], "--truth", specs[1]]


def test_one_part_is_fitted_and_the_other_reported(scene):
    folder, words = scene
    assert main([*words, "--box", "0:20,0:9,0:9", "--out", f"{folder}/calibration.yaml"]) == 0
    record = yaml.safe_load((folder / "calibration.yaml").read_text())
    figures = record["quality"]
    assert figures["fitted"]["calibrated"]["points"] == 19 and figures["held_out"]["calibrated"]["points"] == 20
    assert figures["held_out"]["calibrated"]["auc"] == 1 and figures["held_out"]["score"]["auc"] == 0.5
    edges = read_scored([folder / "graph.csv"], f"{folder}/calibration.yaml")
    assert all((e.score > 0.5) == bool(e.segment_a % 2) for e in edges)

    merged = f"{folder}/merged.zarr"
    options = ["--calibration", f"{folder}/calibration.yaml", "--out", merged]
    assert main(["merge", f"{folder}/graph.csv", *words[2:4], *options]) == 0
    scores = ["evaluate", "--segmentation", merged, *words[4:], "--out", f"{folder}/scores.json"]
    assert main(scores) == 0
    assert yaml.safe_load((folder / "scores.json").read_text())["scores"]["foreground"]["voi"] == pytest.approx(
        0, abs=1e-9
    )


@pytest.mark.parametrize(
    ("mask", "left"),
    [("#box=9:11,0:4,0:4", 16), ("#box=15:20,2:3,3:4", 14)],  # segments 10 and 11, which have three; five points
)
def test_masked_voxels_say_nothing(scene, mask, left):
    folder, words = scene
    box = ["--box", "0:20,0:9,0:9"]
    assert main([*words, *box, "--masks", mask, "--out", f"{folder}/calibration.yaml"]) == 0
    record = yaml.safe_load((folder / "calibration.yaml").read_text())
    assert record["quality"]["fitted"]["score"]["points"] == left and record["provenance"]["inputs"]["masks"] == mask


def test_points_where_a_side_was_spared_say_nothing(scene):
    """They are often of one neuron, at the end of a neurite that does not grow again."""
    folder, words = scene
    edges = [edge(a, a + 1, 0.8 if a % 2 else 0.3, z=a) for a in range(1, 40)]
    edges[4:8] = [replace(e, evidence=replace(e.evidence, tries_b=0, agreement=0.0)) for e in edges[4:8]]
    (folder / "graph.csv").write_text(header({}) + "".join(e.row() + "\n" for e in edges))
    assert main([*words, "--box", "0:20,0:9,0:9", "--out", f"{folder}/calibration.yaml"]) == 0
    figures = yaml.safe_load((folder / "calibration.yaml").read_text())["quality"]["fitted"]["score"]
    assert figures["points"] == 15 and figures["same"] == 8
    scored = [e.score for e in read_scored([folder / "graph.csv"], f"{folder}/calibration.yaml")]
    assert np.isnan(scored[4:8]).all() and min(scored[:4]) > 0


NAN = "intercept: .nan\nfeatures: {iou: {mean: 0, spread: 1, weight: 2}}"


@pytest.mark.parametrize("text", ["", "intercept: 1\nfeatures: {colour: {mean: 0, spread: 1, weight: 2}}", "[1", NAN])
def test_a_damaged_calibration_is_refused_by_name(text, scene, capsys):
    folder, words = scene
    (folder / "bad.yaml").write_text(text)
    options = ["--calibration", f"{folder}/bad.yaml", "--out", f"{folder}/merged.zarr"]
    assert main(["merge", f"{folder}/graph.csv", *words[2:4], *options]) == 2
    assert "bad.yaml: " in capsys.readouterr().err
