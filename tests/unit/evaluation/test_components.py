"""Bodies that the scored box cuts into several components are scored as several."""

import numpy as np
import pytest
from skimage.measure import label

from ffn.cli import main
from ffn.contingency import count_pairs
from ffn.evaluation.config import EvaluateConfig
from ffn.evaluation.evaluate import Inputs, evaluate
from ffn.evaluation.scores import score
from ffn.evaluation.scoring import Comparison
from ffn.evaluation.skeletonize import Skeletons
from ffn.geometry import Box
from ffn.io.masks import open_masked_truth
from ffn.io.open import open_volume

from ..volumes import write
from .conftest import TUBE_SIZE_NM

CONVENTIONS = ("foreground", "all", "cremi")


@pytest.fixture
def hairpin(tmp_path):
    """A body that turns back outside of the box, beside another one; its truth, its components, and skeletons."""
    truth = np.full((12, 36, 60), 9, np.uint64)
    truth[2:10, 2:10, :50] = truth[2:10, 26:34, :50] = truth[2:10, 2:34, 50:58] = 3
    box = Box((0, 0, 0), (12, 36, 45))
    truth_spec = write(tmp_path / "truth.zarr", truth, size=TUBE_SIZE_NM)
    perfect = write(tmp_path / "perfect.zarr", label(truth[..., :45], connectivity=1), size=TUBE_SIZE_NM)
    skeletons = str(tmp_path / "skeletons.h5")
    assert main(["skeletonize", "--labels", truth_spec, "--min-voxels", "50", "--out", skeletons]) == 0
    return Inputs(perfect, truth_spec, skeletons=skeletons), box


def test_a_perfect_segmentation_of_a_body_cut_by_the_box_has_no_error(tmp_path, hairpin):
    inputs, box = hairpin
    result = evaluate(inputs, tmp_path / "s.json", EvaluateConfig(), box)
    for convention in CONVENTIONS:
        assert result["scores"][convention]["voi"] == 0
        assert result["scores"][convention]["are"] == pytest.approx(0, abs=1e-12)
    assert result["erl"]["nerl"] == pytest.approx(1)
    assert (result["num_truth"], result["num_segments"], result["errors"]) == (3, 3, [])
    whole = result["whole_bodies"]
    assert whole["num_truth"] == 2 and whole["scores"]["all"]["voi"] > 0.1 and whole["scores"]["all"]["are"] > 0.01
    assert whole["erl"]["nerl"] < 0.9


def test_a_segment_that_joins_two_components_costs_but_is_no_place_to_look_at(tmp_path, hairpin):
    inputs, box = hairpin
    with open_volume(inputs.truth) as truth:
        segments = truth.read(box)
    inputs = Inputs(write(tmp_path / "joined.zarr", segments, size=TUBE_SIZE_NM), inputs.truth)
    result = evaluate(inputs, tmp_path / "s.json", EvaluateConfig(), box)
    assert result["errors"] == []
    assert result["scores"]["all"]["voi_merge"] > 0 == result["whole_bodies"]["scores"]["all"]["voi"]


@pytest.mark.parametrize("blocks", [(7, 9, 20), (12, 36, 45)])
def test_the_components_depend_neither_on_blocks_nor_on_parts(tmp_path, hairpin, blocks, monkeypatch):
    inputs, box = hairpin
    inputs = Inputs(inputs.segmentation, inputs.truth, skeletons=inputs.skeletons)
    whole = evaluate(inputs, tmp_path / "a.json", EvaluateConfig(), box)
    monkeypatch.setattr("ffn.evaluation.scoring.PART_ZYX", (5, 4, 7))
    monkeypatch.setattr("ffn.evaluation.scoring.blocks_of", lambda placed, _: list(placed.box.blocks(blocks)))
    assert evaluate(inputs, tmp_path / "b.json", EvaluateConfig(), box) == whole


def test_the_components_are_those_of_scikit_image(tmp_path, monkeypatch):
    monkeypatch.setattr("ffn.evaluation.scoring.PART_ZYX", (3, 4, 5))
    monkeypatch.setattr("ffn.evaluation.scoring.blocks_of", lambda placed, _: list(placed.box.blocks((6, 5, 9))))
    rng = np.random.default_rng(0)
    bodies = rng.choice(np.array([0, 2, 5, 2**63 + 9], np.uint64), (9, 11, 13))
    segments = rng.integers(0, 5, bodies.shape).astype(np.uint64)
    with open_masked_truth(write(tmp_path / "truth.zarr", bodies), ()) as truth:
        comparison = Comparison(truth, [lambda box: segments[box.slices()]], truth.box, TUBE_SIZE_NM)
        (found,) = comparison.add_up([*map(comparison.look, comparison.blocks)])
    expected = count_pairs(label(bodies.astype(np.int64), background=0, connectivity=1).astype(np.uint64), segments)
    for convention in ("foreground", "all"):
        assert score(found.tables[convention], convention) == pytest.approx(score(expected, convention))
    assert set(found.bodies.tolist()) == {0, 2, 5, 2**63 + 9}


def test_a_skeleton_by_hand_is_cut_where_the_box_cuts_it(tmp_path, hairpin):
    """It runs a little beside its body, which neither cuts it nor counts it twice."""
    inputs, box = hairpin
    x = np.append(np.arange(2, 54, 3), np.arange(53, 1, -3))
    y = np.repeat([6, 30], len(x) // 2)
    voxels = np.stack([np.where(x == 20, 1, 6), y, x], axis=1)  # node 20 lies in body 9
    edges = np.stack([np.arange(len(x) - 1), np.arange(1, len(x))], axis=1)
    given = Skeletons((voxels + 0.5) * TUBE_SIZE_NM, edges, np.ones(len(x), np.uint64))
    given.write(tmp_path / "given.h5", {})
    inputs = Inputs(inputs.segmentation, inputs.truth, skeletons=str(tmp_path / "given.h5"))
    result = evaluate(inputs, tmp_path / "s.json", EvaluateConfig(), box)
    assert (result["erl"]["num_skeletons"], result["whole_bodies"]["erl"]["num_skeletons"]) == (2, 1)
    assert result["erl"]["length_nm"] == result["whole_bodies"]["erl"]["length_nm"]
