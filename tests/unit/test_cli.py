"""The command line itself: values that begin with a minus, arguments from a file."""

import re

import numpy as np
import pytest

from ffn.cli import FIRST_OPTIONS, main
from ffn.config import Mask
from ffn.geometry import Box
from ffn.io.open import open_volume
from ffn.io.volume import Placement

from ..volumes import write_volume

BOX = "-5:18,-2:2,0:4"


@pytest.fixture
def partition_words(tmp_path):
    """Arguments of ``ffn partition`` for labels that begin at (-7, -2, 0)."""
    placement = Placement(Box((-7, -2, 0), (23, 2, 6)), (40, 10, 20))
    labels = write_volume(f"{tmp_path}/labels.h5:labels", np.ones(placement.box.shape, np.uint64), placement)
    words = ["--labels", labels, "--out", f"{tmp_path}/out put.zarr", "--lom-radius", "1", "1", "1"]
    return [*words, "--min-label-um3", "0.0"]


def test_points_and_boxes_of_options_may_begin_below_zero(monkeypatch):
    calls = []
    monkeypatch.setattr("ffn.inference.segment.segment", lambda *given: calls.append(given))
    words = ["segment", "--image", "a.h5:raw", "--model", "model", "--out", "b.h5:seg"]
    words += ["--seed-points=-1,2,3", "--masks", f"#box={BOX}", "m.h5:m#values=-3", "--disco-seed-threshold", "-.5"]
    words += ["--machine", "chosen", "--normalization", "n.json"]
    assert main([*words, f"--box={BOX}"]) == 0
    ((inputs, _, config, box, _),) = calls
    assert (config.seed_points, inputs.masks) == ("-1,2,3", (Mask(box=BOX), Mask(path="m.h5:m", values=(-3,))))
    assert (config.disco_seed_threshold, str(box)) == (-0.5, BOX)
    assert (inputs.machine, inputs.normalization) == ("chosen", "n.json")


def test_arguments_come_from_a_file_too_as_help_says(partition_words, tmp_path, capsys):
    (tmp_path / "words.txt").write_text("\n".join([*partition_words, f"--box={BOX}"]))
    assert main(["partition", f"@{tmp_path}/words.txt"]) == 0
    with open_volume(partition_words[3]) as made:
        assert str(made.box) == BOX
    with pytest.raises(SystemExit):
        main(["merge", "--help"])
    assert "@FILE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["merge", "@missing.txt", "--segmentation", "a.h5:s", "--out", "b.h5:s"], "No such file .*missing.txt"),
        (["partition", "-x"], "required"),
        (["@words.txt"], "invalid choice: '@words.txt'"),
        (["--", "merge"], "required"),
        (["partition", "--box"], "expected one argument"),
    ],
)
def test_complaints_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(words)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert re.search(message, error)


def test_a_folder_that_has_gone_is_named(monkeypatch, capsys, tmp_path):
    def write(*given):
        (tmp_path / "gone/a").write_text("")

    monkeypatch.setattr("ffn.inference.segment.segment", write)
    assert main(["segment", "--image", "a.h5:raw", "--model", "model", "--out", "b.zarr"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ffn: error: {tmp_path}/gone: the folder") and error.count("\n") == 1


@pytest.mark.parametrize("command", FIRST_OPTIONS)
def test_the_help_shows_what_matters_and_another_all(command, capsys):
    shown = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            main([command, word])
        assert end.value.code == 0
        shown.append(set(re.findall(r"^  (--[a-z0-9-]+)", capsys.readouterr().out, re.MULTILINE)))
    assert shown[0] < shown[1] and len(shown[1]) > 20
    found = {word[2:].replace("-", "_") for word in shown[0]}
    names = FIRST_OPTIONS[command].split()
    assert all({name, name.removesuffix("_zyx")} & found for name in names)


def test_the_first_line_of_the_help_says_what_is_needed(capsys):
    for words, expected in {
        ("train",): "ffn train --records FOLDER --volume NAME=IMAGE,LABELS --out MODEL_DIR [OPTION …]",
        ("reconcile",): "ffn reconcile VOLUME … --out NAME.zarr [OPTION …]",
        ("study",): "ffn study KIND … [OPTION …]",
        ("labels",): "ffn labels {RUN | --new IMAGE | --check LABELS} [OPTION …]",
    }.items():
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        assert capsys.readouterr().out.splitlines()[0] == f"usage: {expected}"
