import numpy as np
import pytest

from ffn.config import ModelConfig
from ffn.errors import ModelError
from ffn.model.network import build_network, conv_names, weight_shapes
from ffn.model.store import (
    Model,
    check_weights,
    import_published,
    load_description,
    load_model,
    read_published,
    save_model,
    weights_checksum,
)
from ffn.model.tissue import Histogram, Tissue

CONFIG = ModelConfig(depth=2, features=3, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2), image_mean=100, image_stddev=20)


def random_weights(rng_seed=0):
    rng = np.random.default_rng(rng_seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in weight_shapes(CONFIG).items()}


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path / "model", Model(CONFIG, random_weights(), {"stage": "test"}))
    return tmp_path / "model"


def test_weights_of_another_model_or_damaged_ones_are_refused(tmp_path, folder):
    save_model(tmp_path / "other", Model(CONFIG, random_weights(1), {}))
    (tmp_path / "other/weights.h5").replace(folder / "weights.h5")
    with pytest.raises(ModelError, match="weights.h5"):
        load_model(folder)
    with pytest.raises(ModelError, match="model.ckpt-7.index"):
        read_published(f"{tmp_path}/model.ckpt-7")
    (tmp_path / "model.ckpt-7.index").write_bytes(b"not a checkpoint")
    with pytest.raises(ModelError, match="model.ckpt-7: "):
        read_published(f"{tmp_path}/model.ckpt-7")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    weights = random_weights()
    weights["conv1_a/biases"][1] = value
    save_model(tmp_path / "model", Model(CONFIG, weights, {}))  # by a training that diverged
    with pytest.raises(ModelError, match="conv1_a/biases"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "model.yaml"),
        ("model: [", "model.yaml"),
        ("- a list", "model.yaml"),
        ("model: 3", "model.yaml"),
        ("model: {depth: 0}", "model.yaml: model.depth"),
        ("model: {}\nhistogram: {levels: [1]}", "model.yaml: .*counts"),
        ("model: {}\ntrained_on: {membranes: dark}", "model.yaml: .*voxel_sizes"),
    ],
)
def test_an_unusable_description_is_refused(folder, text, message):
    (folder / "model.yaml").unlink()
    if text is not None:
        (folder / "model.yaml").write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("conv1_b/biases"), r"conv1_b/biases: found None, expected \(3,\)"),
        (lambda weights: weights.update(extra=np.zeros(2)), r"extra: found \(2,\), expected None"),
        (lambda weights: weights.update({"conv_lom/biases": np.zeros(2)}), r"conv_lom/biases: found \(2,\), expected"),
    ],
)
def test_weights_that_do_not_fit_the_architecture_are_not_saved(tmp_path, change, message):
    weights = random_weights()
    check_weights(CONFIG, weights, "model")
    change(weights)
    with pytest.raises(ModelError, match=message):
        save_model(tmp_path / "model", Model(CONFIG, weights, {}))
    assert not (tmp_path / "model").exists()


def test_the_description_is_written_last(tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ffn.model.store.write_text", fail)
    with pytest.raises(KeyboardInterrupt):
        save_model(tmp_path / "model", Model(CONFIG, random_weights(), {}))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["weights.h5"]


def test_a_model_keeps_histogram_and_tissue_of_what_it_was_trained_on(tmp_path, folder):
    assert load_description(folder).histogram is load_model(folder).histogram is None
    histogram = Histogram.of_counts(np.bincount([3, 3, 250], minlength=256))
    tissue = Tissue(((30.0, 6.0, 6.0),), "dark", 128)
    save_model(tmp_path / "with", Model(CONFIG, random_weights(), {}, histogram, tissue))
    found = load_model(tmp_path / "with").histogram
    assert [load_description(each).trained_on for each in (folder, tmp_path / "with")] == [None, tissue]
    assert (found.levels.tolist(), found.counts.tolist()) == ([3.0, 250.0], [2, 1])


def test_the_checksum_covers_names_and_values():
    weights = random_weights()
    renamed = {name.replace("conv1_a", "conv9_a"): array for name, array in weights.items()}
    changed = {**weights, "conv0_a/biases": weights["conv0_a/biases"] + 1}
    assert weights_checksum(weights) == weights_checksum(dict(reversed(weights.items())))
    assert len({weights_checksum(each) for each in (weights, renamed, changed)}) == 3


@pytest.mark.parametrize("missing", ["image_mean", "image_stddev"])
def test_the_normalisation_must_be_given(tmp_path, missing):
    config = ModelConfig(**{"image_mean": 128, "image_stddev": 33, missing: None})
    with pytest.raises(ModelError, match="--image-mean"):
        import_published("model.ckpt-7", str(tmp_path / "model"), config)
    assert not (tmp_path / "model").exists()


SMALL = ModelConfig(depth=3, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 1, 2))


def test_the_network_has_the_listed_weights_and_published_names():
    assert conv_names(SMALL) == ["conv0_a", "conv0_b", "conv1_a", "conv1_b", "conv2_a", "conv2_b", "conv_lom"]
    network = build_network(SMALL)
    found = [each.shape for name in conv_names(SMALL) for each in network.get_layer(name).get_weights()]
    assert found == list(weight_shapes(SMALL).values())
    assert network.count_params() == sum(int(np.prod(shape)) for shape in found)
