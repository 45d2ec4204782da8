"""The train stage from the command line."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.errors import ConfigError
from ffn.model.store import Model, load_model, save_model
from ffn.model.tissue import Histogram, count_levels
from ffn.training.config import TrainConfig
from ffn.training.plan import Training, ValidationSource, initial_weights
from ffn.training.train import training_job

from .conftest import VOLUME_BOX

pytestmark = pytest.mark.usefixtures("no_launcher")

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(3, 5, 7), deltas_zyx=(1, 2, 3), image_mean=120, image_stddev=30)


@pytest.fixture
def no_steps(data, tmp_path):
    """Arguments that copy an initial model without training."""
    image, labels = data.volumes["a"]
    save_model(tmp_path / "init", Model(MODEL, initial_weights(MODEL, 5), {}))
    return [
        *("train", "--records", data.records, "--volume", f"a={image},{labels}", "--init", f"{tmp_path}/init"),
        *("--num-workers", "1", "--batch-size", "1", "--permutable-axes", "--max-steps", "0"),
        *("--out", f"{tmp_path}/model"),
    ]


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_training_for_no_steps_does_not_load_tensorflow(no_steps, tmp_path, precision):
    arguments = [*no_steps, "--precision", precision]
    code = f"import sys; from ffn.cli import main; print(main({arguments!r}), 'tensorflow' in sys.modules)"
    variables = dict(os.environ)  # without what MPI sets behind Python's back, if a test started it in this process
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=variables)
    assert done.stdout == "0 False\n", done.stderr
    np.testing.assert_equal(load_model(tmp_path / "model").weights, load_model(tmp_path / "init").weights)


@pytest.fixture
def measured(no_steps):
    """Arguments that measure the grey levels of the volume for new weights."""
    start = no_steps.index("--init")
    size = ("--depth", "2", "--features", "4", "--fov-size", "3", "5", "7", "--deltas", "1", "2", "3")
    return [*no_steps[:start], *no_steps[start + 2 :], *size]


def test_the_model_has_the_grey_levels_that_masks_leave_and_names_them(measured, image, tmp_path):
    assert main([*measured, "--masks", "a=#box=-99:99,-99:99,-99:10"]) == 0
    model = load_model(tmp_path / "model")
    assert model.config.image_mean == pytest.approx(image[:, :, 10 - VOLUME_BOX.start[2] :].mean())
    assert model.provenance["inputs"]["masks"] == "a=#box=-99:99,-99:99,-99:10"


def test_a_folder_in_which_another_program_trains_stays_as_it_is(no_steps, tmp_path):
    log = tmp_path / "model/metrics.csv"
    log.parent.mkdir()
    log.write_text("epoch,step,train_loss\n")
    assert main(no_steps) == 2 and log.read_text() == "epoch,step,train_loss\n"
    log.unlink()
    assert [main(no_steps), main(no_steps)] == [0, 0]


def test_the_model_names_its_inputs(no_steps, data, tmp_path):
    assert main([*no_steps, "--rng-seed", "7"]) == 0
    image, labels = data.volumes["a"]
    assert load_model(tmp_path / "model").provenance["inputs"] == {
        "records": data.records,
        "volumes": f"a={image},{labels}",
        "rng_seed": "7",
        "init": f"{tmp_path}/init",
    }


def test_matched_volumes_come_in_the_grey_levels_that_the_initial_weights_know(data, image, tmp_path):
    levels = np.random.default_rng(1).normal(120, 30, 9999).clip(0, 255).astype(np.uint8)
    known = Model(MODEL, initial_weights(MODEL, 5), {}, Histogram.of_counts(count_levels(levels)))
    save_model(tmp_path / "init", known)
    train, init = TrainConfig(num_workers=1, max_steps=1, permutable_axes=()), str(tmp_path / "init")
    for methods, expected in (({}, (image.mean(), image.std())), ({"a": "match"}, (120.0, 30.0))):
        matched = Training(replace(data, normalize=methods), ModelConfig(), train, 1, init)
        with training_job(matched) as (_, plan, opened):
            config, seen = plan.initial.config, opened["a"].normalisation.apply(image)
        assert (config.image_mean, config.image_stddev) == pytest.approx(expected)
        assert (seen.mean(), seen.std()) == pytest.approx((0, 1), abs=0.05)
    validation = {"b": ValidationSource(*data.volumes["a"], VOLUME_BOX)}
    mixed = replace(data, normalize={"b": "match"}, validation=validation)
    message = "volumes.a.normalize: found training, expected match as for b, or volume"
    with pytest.raises(ConfigError, match=message), training_job(Training(mixed, ModelConfig(), train, 1, init)):
        pass
    given = ModelConfig(image_mean=120.0, image_stddev=30.0)  # as where `a` is what the weights were trained on
    with training_job(Training(mixed, given, train, 1, init)) as (_, plan, _):
        assert plan.initial.config.image_mean == 120


@pytest.mark.parametrize(
    ("given", "expected"), [([], (1e-5, 100)), (["--learning-rate", "0.001", "--warmup-steps", "0"], (1e-3, 0))]
)
def test_fine_tuning_by_hand_has_the_defaults_of_the_workflow_and_records_them(no_steps, tmp_path, given, expected):
    assert main([*no_steps, *given]) == 0
    config = load_model(tmp_path / "model").provenance["config"]
    assert (config["learning_rate"], config["warmup_steps"]) == expected and not config["use_best"]
