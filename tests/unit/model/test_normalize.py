import json

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import Mask, ModelConfig
from ffn.errors import ModelError, VolumeError
from ffn.geometry import Box
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.normalize import Normalisation, choose, compare, complaint, read_normalisation
from ffn.model.store import Model, save_model
from ffn.model.tissue import Histogram, count_levels, survey_of

from ...volumes import create_volume, write_volume

SHAPE = (20, 30, 40)
CONFIG = ModelConfig(depth=1, features=2, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=20)
TISSUE = np.random.default_rng(1).normal(100, 20, SHAPE).clip(0, 255).astype(np.uint8)
CONTRASTS = {
    "brighter": np.clip(TISSUE * 1.6 + 10, 0, 255).astype(np.uint8),
    "gamma": (255 * (TISSUE / 255) ** 0.7).astype(np.uint8),
    "inverted and 16 bit": (65535 - 200 * TISSUE.astype(np.uint16)).astype(np.uint16),
}


def histogram(voxels):
    return Histogram.of_counts(count_levels(voxels))


def write_image(path, voxels):
    return write_volume(f"{path}:raw", voxels, Placement(Box.from_shape(SHAPE)))


def write_model(folder, trained_on=None, config=CONFIG):
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    save_model(folder, Model(config, weights, {}, None if trained_on is None else histogram(trained_on)))
    return str(folder)


def test_a_volume_by_its_own_figures_or_those_of_the_model():
    found = read_normalisation(None, CONFIG).apply(np.array([80, 100, 140], np.uint8))
    assert found.dtype == np.float32 and found.tolist() == [-1, 0, 2]
    with pytest.raises(ModelError, match="image_mean"):
        read_normalisation(None, CONFIG.model_copy(update={"image_mean": None}))
    found = choose("volume", histogram(CONTRASTS["gamma"]), CONFIG, None).apply(CONTRASTS["gamma"])
    assert (found.mean(), found.std()) == pytest.approx((0, 1), abs=1e-4)


@pytest.mark.parametrize("name", ["brighter", "gamma"])
def test_a_matched_volume_looks_like_what_was_trained_on(name):
    usual = Normalisation.of_model(CONFIG).apply(TISSUE)
    matched = choose("match", histogram(CONTRASTS[name]), CONFIG, histogram(TISSUE)).apply(CONTRASTS[name])
    is_clipped = CONTRASTS[name] == 255
    assert (
        np.abs(matched - usual)[~is_clipped].max() < 0.3
    )  # rounding to whole grey levels, and few voxels in the tails
    assert np.abs(matched - usual)[~is_clipped].mean() < 0.02


def test_a_match_needs_to_know_what_was_trained_on(tmp_path, capsys):
    raw, model = write_image(tmp_path / "raw.h5", TISSUE), write_model(tmp_path / "model")
    command = ["normalize", "--image", raw, "--model", model, "--normalize", "match", "--out", f"{tmp_path}/n.json"]
    assert main(command) == 2
    assert f"{model}: " in capsys.readouterr().err
    matched = write_model(tmp_path / "matched", CONTRASTS["gamma"])
    assert main([matched if word == model else word for word in command]) == 0
    written = json.loads((tmp_path / "n.json").read_text())
    assert written["trained_on"]["mean"] == pytest.approx(CONTRASTS["gamma"].mean())
    found = read_normalisation(f"{tmp_path}/n.json", CONFIG).apply(TISSUE)
    assert found.mean() == pytest.approx((CONTRASTS["gamma"].mean() - 100) / 20, abs=0.01)


@pytest.mark.parametrize("knows_histogram", [True, False])
@pytest.mark.parametrize(("name", "is_far"), [("brighter", True), ("gamma", True), (None, False)])
def test_far_grey_levels_are_complained_of(name, is_far, knows_histogram):
    voxels, reference = CONTRASTS.get(name, TISSUE[:10]), histogram(TISSUE) if knows_histogram else None
    usual = Normalisation.of_model(CONFIG)
    said = complaint("training", compare(usual, histogram(voxels), CONFIG, reference))
    assert (said is not None) == is_far
    if said:
        assert f"{voxels.mean():.1f} ± {voxels.std():.1f}" in said and "normalize: match" in said


def test_what_is_matched_is_not_complained_of(tmp_path, caplog):
    raw, model = write_image(tmp_path / "raw.h5", CONTRASTS["brighter"]), write_model(tmp_path / "model", TISSUE)
    for method, said in (("training", "normalize: match"), ("match", None)):
        caplog.clear()
        out = tmp_path / f"{method}.json"
        arguments = ["--image", raw, "--model", model, "--normalize", method, "--out", str(out)]
        assert main(["normalize", *arguments]) == 0
        written = json.loads(out.read_text())
        assert written["distance"] > 1 and (written["seen_distance"] < 0.1) == (said is None)
        assert (written["warning"] is None) == (said is None) == ("grey levels are" not in caplog.text)


def test_blank_and_float_images_have_no_histogram(tmp_path):
    for voxels in (np.full(SHAPE, 7, np.uint8), TISSUE / 255):
        raw = write_image(tmp_path / "raw.h5", voxels)
        with pytest.raises(VolumeError, match="raw.h5:raw"):
            survey_of(raw).of_several_levels(raw)


def test_a_mask_that_cannot_be_read_is_not_taken_for_one_that_does_not_cover(tmp_path, monkeypatch):
    image, small = write_image(tmp_path / "raw.h5", TISSUE), f"{tmp_path}/small.h5:mask"
    with create_volume(small, np.uint8, Placement(Box((0, 0, 0), (5, 5, 5)))):
        pass
    with pytest.raises(VolumeError, match="raw.h5:raw"):
        survey_of(image, [Mask(path=small)]).of_several_levels(image)

    def damaged(*read):
        raise VolumeError("chunk 0-0-0 is damaged")

    monkeypatch.setattr("ffn.io.masks._masked", damaged)
    with pytest.raises(VolumeError, match="damaged"):
        survey_of(image, [Mask(path=image)]).of_several_levels(image)


@pytest.mark.parametrize("text", ["{", "{}", '{"mean": "x", "stddev": 1, "curve": null}'])
def test_a_file_that_is_no_normalisation_is_refused(tmp_path, text):
    (tmp_path / "n.json").write_text(text)
    with pytest.raises(ModelError, match="n.json"):
        read_normalisation(f"{tmp_path}/n.json", CONFIG)
