"""Options that follow from voxels and initial weights; given ones always win."""

import pytest
import yaml

from ffn.cli import main
from ffn.errors import ConfigError
from ffn.model.store import load_description, save_model
from ffn.workflow.places import open_run

from .runs import random_model

PHANTOM = {"shape_zyx": [64, 96, 96], "voxel_size_zyx_nm": [30, 6, 6]}
OPEN = {"volumes": {"tissue": {"synthetic": PHANTOM}}}
CUBES = {"volumes": {"tissue": {"synthetic": {"shape_zyx": [96, 96, 96]}}}}


def sizes(values):
    run, _, said = open_run(values)
    return run.model.fov_size_zyx, run.model.deltas_zyx, run.train.permutable_axes, said


def test_fov_subvolumes_and_axes_follow_from_thick_sections_only():
    run, _, said = open_run(OPEN)
    assert (run.model.fov_size_zyx, run.model.deltas_zyx) == ((9, 33, 33), (2, 8, 8))
    assert run.train.permutable_axes == ("y", "x") and "[9, 33, 33]" in said
    z, y, x = run.subvolumes.size_zyx
    assert z < y / 3 and y == x and run.subvolumes.overlap_zyx == (14, 48, 48)
    assert run.coordinates.margin_zyx == (6, 24, 24)
    assert sizes(CUBES) == ((33, 33, 33), (8, 8, 8), ("z", "y", "x"), None)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"model": {"fov_size_zyx": [17, 25, 25]}}, ((17, 25, 25), (4, 6, 6), ("y", "x"))),
        ({"model": {"deltas_zyx": [1, 9, 8]}}, ((9, 33, 33), (1, 9, 8), ())),
        ({"train": {"permutable_axes": ["x"]}}, ((9, 33, 33), (2, 8, 8), ("x",))),
    ],
)
def test_given_values_win(given, expected):
    *found, said = sizes({**OPEN, **given})
    assert tuple(found) == expected
    assert not any(f"{section}.{name}" in said for section, options in given.items() for name in options)


@pytest.mark.parametrize("model", [{"fov_size_zyx": None}, {"deltas_zyx": 8}, {"deltas_zyx": "8, 8, 8"}, [9]])
def test_a_wrong_value_is_one_line(model):
    with pytest.raises(ConfigError, match="model"):
        open_run({**OPEN, "model": model})


def test_initial_weights_bring_fov_and_deltas(tmp_path):
    save_model(tmp_path / "model", random_model(fov_size_zyx=(9, 11, 15)))
    weights = {"init": str(tmp_path / "model"), "train": {"max_steps": 0}}
    run, _, _ = open_run({**CUBES, **weights})
    assert (run.model.fov_size_zyx, run.model.deltas_zyx) == ((9, 11, 15), (2, 3, 3))
    assert run.subvolumes.overlap_zyx == (14, 16, 22)  # as many FOVs as with the usual network
    save_model(tmp_path / "plain", random_model())
    words = ["import-checkpoint", f"{tmp_path}/plain", "--fov-size", "9", "9", "9", "--out", f"{tmp_path}/other"]
    assert main(words) == 0 and main([*words, "--deltas", "9", "9", "9"]) == 2
    other, plain = (load_description(tmp_path / name).config for name in ("other", "plain"))
    assert other.fov_size_zyx == (9, 9, 9) and other.deltas_zyx == plain.deltas_zyx


def test_the_configuration_of_snemi3d_fits_its_data(shared_dir, pytestconfig):
    values = yaml.safe_load((pytestconfig.rootpath / "config/snemi3d.yaml").read_text())
    volume = values["volumes"]["cortex"]
    for key in ("image", "labels"):
        volume[key] = f"{shared_dir}/{volume[key].removeprefix('../shared/')}"
    run, places, _ = open_run(values)
    place = places["cortex"]
    assert place.voxel_size_zyx_nm == (30, 12, 12) and run.model.fov_size_zyx == (13, 33, 33)
    assert place.train_box.stop[0] <= 64 <= place.evaluate_box.start[0] and place.evaluate_box.stop[0] <= 80
