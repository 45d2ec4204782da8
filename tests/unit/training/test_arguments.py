"""The command line of `ffn train`: volumes, validation boxes, and options that launchers do not take."""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from ffn.config import Mask
from ffn.errors import ConfigError
from ffn.geometry import Box
from ffn.training.plan import (
    ValidationSource,
    parse_masks,
    parse_normalize,
    parse_validation,
    parse_volumes,
    training_data,
)
from ffn.training.train import add_arguments

VOLUMES = {"a": ("raw.h5:raw", "labels.h5:a")}


def test_a_validation_box_comes_after_image_and_labels():
    found = parse_validation(["a=raw.h5:raw,labels.h5:a,0:9,-5:9,20:30", "b=b.h5,l.h5,1:2,3:4,5:6"], VOLUMES)
    assert found["a"] == ValidationSource("raw.h5:raw", "labels.h5:a", Box((0, -5, 20), (9, 9, 30)))
    assert list(found) == ["a", "b"] and parse_validation([], VOLUMES) == {}


def of_volumes(items):
    return parse_validation(items, VOLUMES)


@pytest.mark.parametrize(
    ("parse", "option", "items"),
    [
        (of_volumes, "--validate", ["a=raw.h5:raw,labels.h5:a"]),
        (of_volumes, "--validate", ["raw.h5,labels.h5,0:9,0:9,0:9"]),
        (of_volumes, "--validate b", ["b=raw.h5,labels.h5,0:9,9:9,0:9"]),
        (of_volumes, "--validate", ["b=r,l,0:9,0:9,0:9"] * 2),
        (of_volumes, "--validate a", ["a=r,l,0:9,0:9,0:9"]),  # other files than those of --volume
        (parse_normalize, "--normalize", ["a=volume", "a=match"]),
        (parse_normalize, "--normalize", ["a=values"]),
        (parse_masks, "--masks", ["m.h5"]),
        (parse_masks, "--masks", ["a=m.h5#values=x"]),
        (parse_volumes, "--volume", ["a=raw.h5"]),
        (parse_volumes, "--volume", ["a=,l"]),
    ],
)
def test_malformed_data_gives_one_line(parse, option, items):
    with pytest.raises(ConfigError, match=f"{option}: ") as caught:
        parse(items)
    assert "\n" not in str(caught.value)


def test_only_known_volumes_have_masks_and_methods():
    given = argparse.Namespace(records="records", volume=["a=raw.h5:raw,labels.h5:a"], normalize=[], masks=["b=m.h5"])
    assert training_data(given).volumes == VOLUMES
    with pytest.raises(ConfigError, match="--masks: "):
        training_data(given, [])


def test_a_volume_may_have_several_masks():
    items = ["a=soma.zarr#invert", "a=#box=0:4,0:5,0:6", "b=x=y.h5:m#values=3,4"]
    assert parse_masks(items) == {
        "a": (Mask(path="soma.zarr", invert=True), Mask(box="0:4,0:5,0:6")),
        "b": (Mask(path="x=y.h5:m", values=(3, 4)),),
    }


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
def test_horovodrun_takes_no_option_for_an_ambiguous_abbreviation():
    horovodrun = str(Path(sys.executable).parent / "horovodrun")
    theirs = subprocess.run([horovodrun, "--help"], capture_output=True, text=True, check=True).stdout
    known = {word.strip(",[]") for word in theirs.split() if word.strip(",[]").startswith("--")}
    assert "--timeline-filename" in known
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for option in parser._option_string_actions:
        meant = [one for one in known if option.startswith("--") and one.startswith(option)]
        assert option in known or len(meant) <= 1, f"{option}: horovodrun stops because it could mean {meant}"
