"""The commands that only call a library: what they write, print and refuse."""

import subprocess
import sys

import numpy as np
import pytest

from ffn.cli import main
from ffn.cluster.doctor import Finding
from ffn.config import ModelConfig
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement
from ffn.model.network import weight_shapes
from ffn.model.store import Model, load_model, save_model

from ...volumes import write_volume

BOX = Box.from_shape((9, 70, 80), (-2, 5, 100))
VOXELS = np.arange(BOX.num_voxels, dtype=np.uint16).reshape(BOX.shape)
PLACEMENT = Placement(BOX, (40.0, 4.0, 4.0), {"stage": "test"})


@pytest.fixture
def source(tmp_path):
    return write_volume(f"{tmp_path}/a.zarr", VOXELS, PLACEMENT)


def test_a_volume_is_the_same_after_a_round_trip(source, tmp_path):
    assert main(["convert", source, f"{tmp_path}/b.h5:raw"]) == 0
    assert main(["convert", f"{tmp_path}/b.h5:raw", f"{tmp_path}/c/a.zarr"]) == 0
    with open_volume(f"{tmp_path}/b.h5:raw") as volume:
        assert (volume.box, volume.voxel_size_zyx_nm, volume.provenance) == (BOX, (40.0, 4.0, 4.0), {"stage": "test"})
    for path in (tmp_path / "a.zarr").rglob("*"):
        copy = tmp_path / "c" / path.relative_to(tmp_path)
        assert path.is_dir() or path.read_bytes() == copy.read_bytes()


def test_a_box_is_copied_in_its_place_and_a_voxel_size_not_invented(source, tmp_path, capsys):
    assert main(["convert", source, f"{tmp_path}/b.zarr", "--box", "0:5,6:70,110:150"]) == 0
    with open_volume(f"{tmp_path}/b.zarr") as volume:
        assert volume.box == Box((0, 6, 110), (5, 70, 150))
        np.testing.assert_array_equal(volume.read(), VOXELS[volume.box.slices(BOX.start)])
    np.save(tmp_path / "a.npy", VOXELS)
    assert main(["convert", f"{tmp_path}/a.npy", f"{tmp_path}/c.zarr"]) == 2
    assert "a.npy: " in capsys.readouterr().err
    assert not (tmp_path / "c.zarr").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["a.zarr/0"], "a.zarr/0"),  # the input
        (["b.zarr", "--mip", "1"], "mip 1"),
        (["b.zarr", "--box", "0:99,6:70,110:150"], "0:99,6:70,110:150"),
        (["b.tif"], "b.tif: "),
    ],
)
def test_mistakes_are_told(source, tmp_path, capsys, words, named):
    assert main(["convert", source, f"{tmp_path}/{words[0]}", *words[1:]]) == 2
    assert named in capsys.readouterr().err


def test_what_snakemake_watches_names_the_store(source, tmp_path):
    assert main(["convert", f"{source}/zarr.json", f"{tmp_path}/b.zarr/zarr.json"]) == 0
    assert (tmp_path / "b.zarr/0").is_dir()


@pytest.mark.parametrize(
    ("verdict", "code", "last"), [("ok", 0, "no check failed"), ("FAIL", 1, "1 of 2 checks failed")]
)
def test_a_failed_check_is_the_exit_code(verdict, code, last, monkeypatch, capsys):
    findings = [Finding("folder", "warn", "is slow"), Finding("one job", verdict, "found it")]
    monkeypatch.setattr("ffn.cluster.doctor.examine", lambda *arguments: findings)
    with pytest.raises(SystemExit, match=str(code)):
        main(["doctor", "--profile", "local"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["warn  folder   is slow", f"{verdict:4}  one job  found it", last]


MODEL = ModelConfig(depth=2, features=4, fov_size_zyx=(9, 11, 13), deltas_zyx=(2, 3, 3), image_mean=1, image_stddev=2)


def save(folder, value, **changes):
    config = MODEL.model_copy(update=changes)
    weights = {name: np.full(shape, value, np.float32) for name, shape in weight_shapes(config).items()}
    save_model(folder, Model(config, weights, {"stage": "train"}))


def test_initial_weights_are_written_with_the_network_of_the_training_that_started_from_them(tmp_path):
    save(tmp_path / "start", 1.0)
    save(tmp_path / "trained", 2.0, deltas_zyx=(3, 3, 3), image_mean=128.0)
    words = ["import-checkpoint", f"{tmp_path}/start", "--trained", f"{tmp_path}/trained"]
    assert main([*words, "--out", f"{tmp_path}/out"]) == 0
    made, trained = load_model(tmp_path / "out"), load_model(tmp_path / "trained")
    assert made.config == trained.config
    assert made.weights["conv0_a/weights"].max() == made.weights["conv1_b/weights"].max() == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-n", "0", "--", "true"], "--num-ranks: '0'"),
        (["-n", "1", "--launcher-options", "'", "--", "true"], "--launcher-options: "),
        (["-n", "1", "--grace-seconds", "-1", "--", "true"], "--grace-seconds: '-1'"),
    ],
)
def test_a_mistake_is_one_line(words, named, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["launch", *words])
    assert named in capsys.readouterr().err
    assert main(["launch", "-n", "1"]) == 2
    assert "launch: " in capsys.readouterr().err


def test_a_missing_command_is_named_without_a_traceback():
    words = ["-n", "1", "--launcher", "local", "--", "no-such-command"]
    done = subprocess.run([sys.executable, "-m", "ffn", "launch", *words], capture_output=True, text=True)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "no-such-command" in done.stderr


@pytest.mark.parametrize("steps", ["0", "19"])
def test_too_few_steps_to_measure_are_refused_before_anything_starts(steps, capsys):
    training = ["--", "--records", "nowhere", "--volume", "a=r,l"]
    assert main(["study", "measure", "--out", "nowhere.h5", "--measured-steps", steps, *training]) == 2
    assert f"--measured-steps: found '{steps}'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--gradients-per-update", "--max-staleness"])
def test_a_study_measures_and_trains_synchronously(option, capsys):
    training = ["--", "--records", "nowhere", "--volume", "a=r,l", option, "1"]
    assert main(["study", "measure", "--out", "nowhere.h5", *training]) == 2
    assert "train.gradients_per_update: " in capsys.readouterr().err
