"""New labels for people, and the configuration of the round that trains on confirmed ones."""

import shutil
import types

import numpy as np
import pytest
import yaml

from ffn.cli import main
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.model.store import load_description
from ffn.workflow.config_files import ROOT
from ffn.workflow.first_run import FROM_WEIGHTS
from ffn.workflow.places import open_run

from ..volumes import read, write

SIZE_NM, START = (20.0, 10.0, 10.0), (5, 0, 40)
CONFIG = {
    "run": "mine",
    "volumes": {"cube": {"synthetic": {"shape_zyx": [40, 64, 120]}, "corrections": "old.csv"}},
    "model": {"depth": 5, "fov_size_zyx": [17, 17, 17], "deltas_zyx": [5, 5, 5]},
    "train": {"optimizer": "muon", "weight_decay": 0.1, "ema_decay": 0.999, "fov_policy": "max_pred", "fov_moves": 2},
    "agglomerate": {"enabled": True},
    "partition": {"thresholds": [0.1, 0.3]},
    "affinities": {"enabled": True},
}


@pytest.fixture
def image(tmp_path):
    """Two bright bodies with a dark plane between them."""
    grey = np.full((10, 40, 60), 200, np.uint8)
    grey[:, :, 28:32] = 50
    return write(tmp_path / "raw.zarr", grey, START, SIZE_NM)


def test_new_labels_lie_where_the_image_does(image, tmp_path, capsys):
    words = ["labels", "--new", image, "--out", f"{tmp_path}/new.zarr"]
    assert main([*words, "--box", "6:12,5:35,50:90"]) == 0
    with open_volume(tmp_path / "new.zarr") as labels:
        assert (str(labels.box), labels.voxel_size_zyx_nm) == ("6:12,5:35,50:90", SIZE_NM)
        assert labels.dtype == np.uint32 and not labels.read().any()
    assert main(words) == 2 and "new.zarr" in capsys.readouterr().err  # nobody's work is overwritten
    assert main([*words[:-1], f"{tmp_path}/full.zarr", "--watershed"]) == 0
    pieces = read(tmp_path / "full.zarr")
    assert pieces[5, 20, 5] != pieces[5, 20, 55] and set(np.unique(pieces)) == {1, 2}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose labels are confirmed, and a function that starts the next round and returns its configuration."""
    folder = tmp_path / "results/mine"
    (folder / "volumes/cube").mkdir(parents=True)
    write(folder / "volumes/cube/raw.zarr", np.zeros((40, 64, 120), np.uint8), size=SIZE_NM)
    shutil.copytree(ROOT / "config/demo-weights", folder / "model")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    labels, started = np.zeros((40, 64, 100), np.uint64), []

    def write_confirmed(inputs, objects, out):
        started.append(objects)
        write(out, labels, (0, 0, 10), SIZE_NM)
        return Box.from_shape(labels.shape, (0, 0, 10))

    monkeypatch.setattr("ffn.commands.round.queue_inputs", lambda *_: types.SimpleNamespace(export=tmp_path / "cube"))
    monkeypatch.setattr("ffn.viewing.queue.write_confirmed", write_confirmed)
    monkeypatch.setattr("ffn.commands.round.become_snakemake", lambda config, words: started.append((config, words)))
    monkeypatch.chdir(tmp_path)
    return labels, started


def test_a_round_trains_from_the_weights_of_the_run_on_what_was_confirmed(run, tmp_path):
    labels, started = run
    labels[:, :, 85:] = 7
    other = {**CONFIG["volumes"]["cube"], "train_box": "none"}
    config = {**CONFIG, "volumes": {**CONFIG["volumes"], "other": other}}
    (tmp_path / "results/mine/config.yaml").write_text(yaml.safe_dump(config))
    assert main(["round", "--objects", "7,9", "results/mine", "-n"]) == 0
    assert started == [[7, 9], (config := tmp_path / "results/mine/round.yaml", ["-n"])]
    values = yaml.safe_load(config.read_text())
    assert (values["run"], values["init"]) == ("mine-2", "results/mine/model")
    network = "results/mine/affinities/network.h5"  # which would learn that all that is not confirmed is membrane
    assert values.pop("affinities") == {"enabled": True, "network": network, "max_steps": 0}
    next_run, places, _ = open_run(values)
    assert str(places["cube-confirmed"].train_box) == "0:40,0:64,10:110"
    assert not next_run.selectable_steps  # by their own segments, the old weights always won
    assert not any(place.config.corrections for place in places.values()) and not places["cube"].is_evaluated
    assert (next_run.train.optimizer, next_run.train.ema_decay) == ("adam", None)
    assert next_run.partition.thresholds == (0.2, 0.3)  # slivers of bodies are not a kind of their own
    assert next_run.train.permutable_axes == ("y", "x")  # also where the voxels that were trained on are cubes
    assert next_run.train.learning_rate == FROM_WEIGHTS["learning_rate"] / 2
    assert next_run.model.image_stddev == load_description(tmp_path / "results/mine/model").config.image_stddev


@pytest.mark.usefixtures("run")
def test_a_round_finds_initial_weights_from_any_folder(tmp_path, monkeypatch):
    given = {"init": "weights", "train": {"max_steps": 0}, "affinities": {}}
    (tmp_path / "results/mine/config.yaml").write_text(yaml.safe_dump({**CONFIG, **given}))
    (tmp_path / "results/mine/model").rename(tmp_path / "weights")
    monkeypatch.chdir("results")
    assert main(["round", "mine"]) == 0
    assert yaml.safe_load((tmp_path / "results/mine/round.yaml").read_text())["init"] == "weights"


@pytest.mark.parametrize("folder", ["/mine", "nowhere/results/mine"])
def test_a_round_of_no_run_says_what_is_missing(folder, capsys):
    assert main(["round", folder]) == 2
    assert f"{folder}: " in capsys.readouterr().err


@pytest.mark.usefixtures("run")
def test_labels_of_people_choose_the_weights_where_there_are_some(tmp_path):
    given = {"box": "0:40,0:64,0:40", "checkpoints": 1}
    (tmp_path / "results/mine/config.yaml").write_text(yaml.safe_dump({**CONFIG, "select": given, "affinities": {}}))
    (tmp_path / "results/mine/model").rename(tmp_path / "results/mine/selected")
    assert main(["round", "results/mine"]) == 0
    values = yaml.safe_load((tmp_path / "results/mine/round.yaml").read_text())
    select, places = values["select"], open_run(values)[1]
    assert (select["volume"], select["box"], select["checkpoints"]) == ("cube", "0:40,0:64,0:40", 1)
    (kept,) = places["cube-confirmed"].config.masks  # nothing is learnt where weights are chosen
    assert kept.box == select["box"] and not places["cube"].config.masks
