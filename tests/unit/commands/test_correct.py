"""Corrections that are applied to a finished run."""

import numpy as np
import pytest
import yaml

from ffn.assembly.given import Correction, corrections_text, read_corrections
from ffn.cli import main
from ffn.commands.queue import queue_inputs, trial_inputs
from ffn.model.network import weight_shapes
from ffn.model.store import Model, save_model
from ffn.workflow.run import load_run

from ..volumes import write

ONE, OTHER = Correction("join", (1, 1, 1), (1, 1, 6)), Correction("separate", (1, 1, 11), (1, 1, 6))
CONFIG = {
    "run": "mine",
    "volumes": {"cube": {"synthetic": {"shape_zyx": [64, 56, 72]}}},
    "agglomerate": {"enabled": True},
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with three segments, and a function that corrects it and returns the words for Snakemake."""
    folder = tmp_path / "results/mine"
    labels = np.repeat(np.array([4, 7, 9], np.uint64), 5) * np.ones((3, 3, 1), np.uint64)
    for name in ("segmentation/cube", "precomputed/cube", "agglomeration/cube"):
        (folder / name).mkdir(parents=True)
    write(folder / "segmentation/cube/segmentation.zarr", labels)
    (folder / "precomputed/cube/neuroglancer.json").write_text("{}")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    started = []
    monkeypatch.setattr("ffn.commands.correct.become_snakemake", lambda config, words: started.append((config, words)))
    monkeypatch.chdir(tmp_path)

    def correct(*corrections):
        for number, given in enumerate(corrections):
            (tmp_path / f"{number}.csv").write_text(corrections_text(given))
        status = main(["correct", "results/mine", *(f"{number}.csv" for number in range(len(corrections))), "-n"])
        return status, started

    return folder, correct


def test_files_of_several_people_are_applied_by_merge_alone(run):
    folder, correct = run
    status, [(config, words)] = correct([ONE], [OTHER, ONE])
    assert status == 0
    volume = load_run(yaml.safe_load(config.read_text())).volumes["cube"]
    assert read_corrections(folder.parents[1] / volume.corrections) == [ONE, OTHER]
    assert words[:2] == ["-n", "--allowed-rules"] and {"all", "merge", "fill", "export_plan", "report"} < set(words)
    assert not {"segment", "agglomerate", "train", "segment_list"} & set(words)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == CONFIG


def test_a_contradiction_is_named_and_nothing_is_done(run, capsys):
    folder, correct = run
    status, started = correct([ONE], [OTHER._replace(a_zyx=(1, 1, 1))])
    assert (status, started) == (2, []) and "0.csv, 1.csv: separate,1,1,1" in capsys.readouterr().err
    assert not (folder / "corrected.yaml").exists()


@pytest.mark.parametrize(("segment_box", "status"), [("all", 2), ("none", 0)])
def test_a_volume_is_asked_for_where_the_export_of_another_is_to_come(segment_box, status, run):
    folder, correct = run
    other = {**CONFIG["volumes"]["cube"], "segment_box": segment_box}
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "volumes": {**CONFIG["volumes"], "other": other}}))
    assert correct([ONE])[0] == status and queue_inputs("results/mine", "cube", ()).export.name == "cube"


def test_a_run_that_was_moved_is_refused(run, capsys):
    folder, correct = run
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "run": "other"}))
    assert correct([ONE]) == (2, []) and "results/other" in capsys.readouterr().err


def test_options_of_an_earlier_version_are_left_out(run):
    folder, correct = run
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "gone": 1}))
    status, [(config, _)] = correct([ONE])
    assert status == 0 and "gone" not in yaml.safe_load(config.read_text())


def test_results_may_be_a_link_to_another_disk(run):
    folder, correct = run
    folder.parent.rename(folder.parents[1] / "disk")
    folder.parent.symlink_to("disk")
    status, [(config, _)] = correct([ONE])
    assert status == 0 and config == folder / "corrected.yaml"


def test_answers_of_a_run_are_found_from_any_folder(run, monkeypatch):
    folder, correct = run
    _, [(config, _)] = correct([ONE])
    values = yaml.safe_load(config.read_text()) | {"affinities": {"enabled": True, "network": "affinities.h5"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir("results/mine/segmentation")
    inputs = queue_inputs("..", None, ())
    assert [read_corrections(path) for path in inputs.answers] == [[ONE]] and inputs.has_affinities


def test_graphs_of_an_earlier_box_are_left_out(run):
    folder, _ = run
    names = ["z000000-y000000-x000000.csv", "z000001-y000000-x000000.csv"]
    graphs = folder / "agglomeration/cube/graphs"
    graphs.mkdir()
    for name in names:
        (graphs / name).touch()
    assert queue_inputs("results/mine", None, ()).graphs == [f"results/mine/agglomeration/cube/graphs/{names[0]}"]


def test_the_network_of_a_run_is_found_from_any_folder(run, monkeypatch):
    """Paths of the configuration are relative to the folder of results/, or absolute."""
    folder, _ = run
    volume = {**CONFIG["volumes"]["cube"], "masks": ["soma.h5:labels", "/data/tissue.zarr", {"box": "1:2,3:4,5:6"}]}
    values = {**CONFIG, "volumes": {"cube": volume}, "init": "weights", "train": {"max_steps": 0}}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir("results/mine/segmentation")
    project = folder.parents[1]
    network = load_run(values).model
    weights = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(network).items()}
    save_model(project / "weights", Model(network, weights, {}))
    flood, config, cuts = trial_inputs("..", None)
    assert [mask.path for mask in flood.masks] == [f"{project}/soma.h5:labels", "/data/tissue.zarr", None]
    assert (flood.model, flood.image) == (f"{project}/weights", f"{folder}/volumes/cube/raw.zarr") and cuts is None
    assert config.move_threshold == load_run(values).segment.move_threshold


def test_a_run_is_viewed_where_no_cut_can_be_tried(run, monkeypatch, capsys):
    folder, _ = run
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "agglomerate": {"enabled": False}}))
    viewed = []
    monkeypatch.setattr("ffn.viewing.viewer.view", lambda *given: viewed.append(given[-1]))
    assert main(["view", "results/mine", "--corrections", "c.csv"]) == 0 and viewed == [None]
    (folder / "precomputed/cube/neuroglancer.json").unlink()  # and nobody has to finish it to be told of no graph
    assert main(["queue", "results/mine"]) == 2 and "agglomerate.enabled" in capsys.readouterr().err


def test_a_queue_refuses_answers_that_are_not_there(run, capsys):
    assert main(["queue", "results/mine", "--corrections", "nowhere.csv"]) == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_corrections_are_found_in_a_run_that_was_moved(run, capsys):
    folder, correct = run
    _, [(config, _)] = correct([ONE])
    config.replace(folder / "config.yaml")
    moved = folder.rename("moved")
    assert [read_corrections(path) for path in queue_inputs("moved", None, ()).answers] == [[ONE]]
    assert main(["correct", "moved", "0.csv"]) == 2 and "Move it back" in capsys.readouterr().err
    (moved / "agglomeration/cube/corrections.csv").unlink()
    assert main(["queue", "moved"]) == 2
    assert "moved/agglomeration/cube/corrections.csv" in capsys.readouterr().err
