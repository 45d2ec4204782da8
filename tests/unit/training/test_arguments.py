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
from ffn.training.arguments import parse_masks, parse_normalize, parse_validation, parse_volumes
from ffn.training.plan import ValidationSource
from ffn.training.train import add_arguments

VOLUMES = {"a": ("raw.h5:raw", "labels.h5:a")}


def test_a_validation_box_comes_after_image_and_labels():
    found = parse_validation(["a=raw.h5:raw,labels.h5:a,0:9,-5:9,20:30", "b=b.h5,l.h5,1:2,3:4,5:6"], VOLUMES)
    assert found["a"] == ValidationSource("raw.h5:raw", "labels.h5:a", Box((0, -5, 20), (9, 9, 30)))
    assert list(found) == ["a", "b"] and parse_validation([], VOLUMES) == {}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            ["a=raw.h5:raw,labels.h5:a"],
            "--validate: found 'a=raw.h5:raw,labels.h5:a', expected NAME=IMAGE,LABELS,Z0",
        ),
        (["raw.h5,labels.h5,0:9,0:9,0:9"], "expected NAME=IMAGE,LABELS,Z0:Z1,Y0:Y1,X0:X1 as in a="),
        (["b=raw.h5,labels.h5,0:9,0:9"], "--validate b: box: '0:9,0:9' is not a box"),
        (["b=raw.h5,labels.h5,0:9,9:9,0:9"], "--validate b: box: '0:9,9:9,0:9' is empty"),
        (["b=r,l,0:9,0:9,0:9"] * 2, "--validate: 'b' occurs twice"),
        (["a=r,l,0:9,0:9,0:9"], "--validate a: found r,l, expected raw.h5:raw,labels.h5:a as for --volume"),
    ],
)
def test_a_malformed_validation_gives_one_line(items, message):
    with pytest.raises(ConfigError) as caught:
        parse_validation(items, VOLUMES)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_malformed_volume_gives_one_line():
    assert parse_volumes(["a=raw.h5:raw,labels.h5:a"]) == VOLUMES
    for items in (["a=raw.h5"], ["raw.h5,labels.h5"], ["a=,l"], ["a=r,l", "a=r,l"]):
        with pytest.raises(ConfigError, match="--volume: "):
            parse_volumes(items)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["b=volume"], "--normalize: found volume 'b', expected one of a"),
        (["a=volume", "a=match"], "--normalize: 'a' occurs twice, expected each volume once"),
        (["volume"], "--normalize: found 'volume', expected NAME=METHOD as in a=volume"),
    ],
)
def test_a_normalisation_of_no_volume_or_of_one_twice_is_refused(items, message):
    assert parse_normalize(["a=volume"], VOLUMES) == {"a": "volume"}
    with pytest.raises(ConfigError, match=message):
        parse_normalize(items, VOLUMES)


def test_a_volume_may_have_several_masks():
    items = ["a=soma.zarr#invert", "a=#box=0:4,0:5,0:6", "b=x=y.h5:m#values=3,4"]
    assert parse_masks(items) == {
        "a": (Mask(path="soma.zarr", invert=True), Mask(box="0:4,0:5,0:6")),
        "b": (Mask(path="x=y.h5:m", values=(3, 4)),),
    }
    assert parse_masks([]) == {}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("b=m.h5", "--masks: found volume 'b', expected one of a"),
        ("m.h5", "--masks: found 'm.h5', expected NAME=MASK as in a=soma.zarr#invert"),
        ("a=m.h5#values=x", "--masks"),
    ],
)
def test_a_mask_of_no_volume_is_refused(item, message):
    with pytest.raises(ConfigError, match=message):
        parse_masks([item], VOLUMES)


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
