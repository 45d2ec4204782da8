"""Choosing a checkpoint: the best on the validation box, and never on what is reported."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.errors import ConfigError, EvaluationError, ModelError
from ffn.evaluation.config import SelectConfig
from ffn.evaluation.metrics import BY_NAME
from ffn.evaluation.select import Candidate, select
from ffn.geometry import Box
from ffn.model.network import weight_shapes
from ffn.model.store import Model, load_model, save_model
from ffn.training.checkpoint import Checkpoint, CheckpointFolder, export_checkpoint
from ffn.training.parallel.process_group import ProcessGroup
from ffn.workflow.places import check_sources
from ffn.workflow.run import load_run

MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(9, 11, 13), deltas_zyx=(2, 3, 3), image_mean=1, image_stddev=2)


def weights(value):
    return {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(MODEL).items()}


@pytest.fixture
def candidates(tmp_path):
    """Three checkpoints; the second is best in VOI, the third in ARE."""
    made = {}
    for i, (step, voi, are) in enumerate([("10", 2.0, 0.5), ("20", 1.0, 0.4), ("30", 1.5, 0.3)]):
        save_model(tmp_path / step, Model(MODEL, weights(i), {"stage": "train"}))
        scores = {"box": "0:4,0:5,0:6", "covered_fraction": 0.5, "provenance": {"inputs": {"truth": "t.h5:labels"}}}
        known = {"voi": voi, "are": are, "are_recall": voi}
        scores["scores"] = {name: dict.fromkeys(BY_NAME) | known for name in ("all", "cremi")}
        scores["scores"]["foreground"] = dict.fromkeys(BY_NAME) | {"are": None if i else 0.2}
        (tmp_path / f"{step}.json").write_text(json.dumps(scores))
        made[step] = Candidate(str(tmp_path / step), str(tmp_path / f"{step}.json"))
    return made


def test_the_best_is_copied_and_the_choice_recorded(candidates, tmp_path):
    options = [f"--candidate={name}={one.model},{one.scores}" for name, one in candidates.items()]
    assert main(["select", *options, "--out", str(tmp_path / "best")]) == 0
    model = load_model(tmp_path / "best")
    assert all((array == 1).all() for array in model.weights.values())
    assert model.provenance["selected"] == "20 on 0:4,0:5,0:6"
    selection = json.loads((tmp_path / "best" / "selection.json").read_text())
    assert (selection["best"], selection["metric"], selection["convention"]) == ("20", "voi", "all")
    assert [one["voi"] for one in selection["candidates"]] == [2.0, 1.0, 1.5]


@pytest.mark.parametrize(
    ("options", "best"),
    [
        ({"metric": "are"}, "30"),
        ({"convention": "cremi"}, "20"),
        ({"metric": "are", "convention": "foreground"}, "10"),
        ({"metric": "are_recall"}, "10"),  # the highest
    ],
)
def test_metric_and_convention_decide(candidates, tmp_path, options, best):
    assert select(candidates, tmp_path / "best", SelectConfig(**options))["best"] == best


def test_of_equal_scores_the_later_wins(candidates, tmp_path):
    equal = {name: one._replace(scores=candidates["10"].scores) for name, one in candidates.items()}
    assert select(equal, tmp_path / "best", SelectConfig())["best"] == "30"


def edit(path, **changes):
    Path(path).write_text(json.dumps(json.loads(Path(path).read_text()) | changes))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda p: edit(p, box="0:4,0:5,0:7"), {}, "20: was scored on .*0:7.*expected one box"),
        (lambda p: edit(p, provenance={"inputs": {"truth": "other"}}), {}, "20: was scored on .*other"),
        (lambda p: Path(p).write_text("{"), {}, "20.json: is not a score file"),
        (lambda p: None, {"config": SelectConfig(convention="foreground")}, "no candidate has a voi"),
        (lambda p: None, {"report_box": Box.parse("3:9,0:5,0:6")}, "--report-box: .* overlaps the validation box"),
    ],
)
def test_what_cannot_be_compared_is_one_line(candidates, tmp_path, change, options, message):
    change(candidates["20"].scores)
    config = options.pop("config", SelectConfig())
    with pytest.raises(EvaluationError, match=message):
        select(candidates, tmp_path / "best", config, **options)
    assert not (tmp_path / "best").exists()


def test_a_box_beside_the_validation_box_may_be_reported(candidates, tmp_path):
    assert select(candidates, tmp_path / "best", SelectConfig(), Box.parse("4:9,0:5,0:6"))["best"] == "20"


@pytest.mark.parametrize("text", ["10", "10=", "10=model", "=model,scores.json"])
def test_an_incomplete_candidate_is_one_line(text, tmp_path, capsys):
    assert main(["select", "--candidate", text, "--out", str(tmp_path / "best")]) == 2
    assert "expected NAME=MODEL_DIR,SCORES.json" in capsys.readouterr().err


def test_a_checkpoint_of_training_becomes_a_model(tmp_path):
    fingerprint = {"model": MODEL.model_dump(mode="json")}
    shared = {f"weights/{name}": array for name, array in weights(7).items()} | {"optimizer/000": np.zeros(3)}
    folder = CheckpointFolder(tmp_path / "checkpoints", fingerprint, 3, ProcessGroup())
    folder.save(Checkpoint(40, shared, {"positions": np.zeros(2)}))
    path = tmp_path / "checkpoints" / "step-00000040"
    assert main(["import-checkpoint", str(path), "--out", str(tmp_path / "model")]) == 0
    model = load_model(tmp_path / "model")
    assert model.config == MODEL and all((array == 7).all() for array in model.weights.values())
    (path / "shared.h5").write_bytes(b"damaged")
    assert main(["import-checkpoint", str(path), "--out", str(tmp_path / "again")]) == 2
    with pytest.raises(ModelError, match="step-00000020: no such checkpoint, .* holds .'step-00000040'"):
        export_checkpoint(path.with_name("step-00000020"), tmp_path / "again")


PHANTOM = {"synthetic": {"shape_zyx": [64, 48, 80]}, "train_box": "0:30,0:48,0:80", "evaluate_box": "44:64,0:48,0:80"}
RUN = {
    "volumes": {"phantom": PHANTOM},
    "model": {"fov_size_zyx": [9, 11, 13], "deltas_zyx": [2, 3, 3], "depth": 2, "features": 4},
    "train": {"permutable_axes": ["y"], "max_steps": 110, "checkpoint_steps": 25, "keep_checkpoints": 3},
    "subvolumes": {"size_zyx": [40, 40, 40], "overlap_zyx": [16, 16, 16]},
    "select": {"checkpoints": 2, "box": "30:44,0:48,0:80"},
}


def test_the_last_checkpoints_are_known_before_training():
    run = load_run(RUN)
    check_sources(run)
    assert run.kept_steps == [75, 100, 110] and run.selectable_steps == [100, 110]
    assert load_run({**RUN, "select": {}}).selectable_steps == []
    assert load_run({**RUN, "train": {**RUN["train"], "max_steps": 100}}).kept_steps == [50, 75, 100]


def test_shipped_defaults_choose_nothing(pytestconfig):
    run = load_run(yaml.safe_load((pytestconfig.rootpath / "config.yaml").read_text()))
    assert run.selectable_steps == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checkpoints": 4}, r"select.checkpoints: 4, but training leaves 3"),
        ({"box": None}, "select: box: None with checkpoints: 2"),
        ({"box": "all"}, "select: box: all with"),
        ({"volume": "other"}, "select.volume: 'other' is none of"),
        ({"box": "30:45,0:48,0:80"}, "select.box: .* overlaps volumes.phantom.evaluate_box 44:64"),
        ({"box": "30:44,0:48,0:81"}, "select.box: .* leaves the labelled part"),
        ({"box": "30:44,0:48,0:12"}, "select.box: .* holds no FOV"),
    ],
)
def test_a_bad_choice_stops_before_anything_runs(change, message):
    with pytest.raises(ConfigError, match=message):
        check_sources(load_run({**RUN, "select": {**RUN["select"], **change}}))


def test_a_validation_box_that_is_trained_on_is_noticed():
    place = check_sources(load_run(RUN))["phantom"]
    assert not place.selects_on_training_data("30:44,0:48,0:80")
    assert place.selects_on_training_data("29:44,0:48,0:80")
