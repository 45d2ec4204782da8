"""The best checkpoint on the validation box is chosen, which must not be reported on."""

import json
from pathlib import Path

import numpy as np
import pytest

from ffn.cli import main
from ffn.config import ModelConfig
from ffn.errors import EvaluationError
from ffn.evaluation.scores import METRICS
from ffn.evaluation.select import Candidate, select
from ffn.model.network import weight_shapes
from ffn.model.store import Model, load_model, save_model

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
        scores["scores"] = {"all": {**dict.fromkeys(metric.name for metric in METRICS), "voi": voi, "are": are}}
        (tmp_path / f"{step}.json").write_text(json.dumps(scores))
        made[step] = Candidate(str(tmp_path / step), str(tmp_path / f"{step}.json"))
    return made


def test_the_best_model_is_copied_and_the_choice_recorded(candidates, tmp_path):
    options = [f"--candidate={name}={one.model},{one.scores}" for name, one in candidates.items()]
    assert main(["select", *options, "--out", str(tmp_path / "best")]) == 0
    model = load_model(tmp_path / "best")
    assert all((array == 1).all() for array in model.weights.values())
    assert model.provenance["selected"] == "20 on 0:4,0:5,0:6"
    selection = json.loads((tmp_path / "best" / "selection.json").read_text())
    assert (selection["best"], selection["metric"], selection["convention"]) == ("20", "voi", "all")
    assert [one["voi"] for one in selection["candidates"]] == [2.0, 1.0, 1.5]


def test_of_equal_scores_the_later_checkpoint_wins(candidates, tmp_path):
    equal = {name: one._replace(scores=candidates["10"].scores) for name, one in candidates.items()}
    assert select(equal, tmp_path / "best")["best"] == "30"


def edit(path, **changes):
    Path(path).write_text(json.dumps(json.loads(Path(path).read_text()) | changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: edit(p, box="0:4,0:5,0:7"), "--candidate: .*0:7"),
        (lambda p: edit(p, provenance={"inputs": {"truth": "other"}}), "--candidate: .*other"),
        (lambda p: Path(p).write_text("{"), "20.json"),
    ],
)
def test_scores_that_cannot_be_compared_are_an_error(candidates, tmp_path, change, message):
    change(candidates["20"].scores)
    with pytest.raises(EvaluationError, match=message):
        select(candidates, tmp_path / "best")
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize("text", ["10", "10=", "10=model", "=model,scores.json"])
def test_an_incomplete_candidate_is_refused(text, tmp_path, capsys):
    assert main(["select", "--candidate", text, "--out", str(tmp_path / "best")]) == 2
    assert "--candidate" in capsys.readouterr().err
