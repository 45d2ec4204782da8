import argparse
import shlex
from typing import Literal

import pytest
from pydantic import Field, PositiveInt

from ffn.config import ImageConfig, ModelConfig, SameResult, Section, SegmentConfig
from ffn.errors import ConfigError
from ffn.io.config import IngestConfig
from ffn.options import Parser, add_box_option, add_options, flags, from_arguments, option_name, parse_named
from ffn.sampling.config import PartitionConfig, RecordsConfig
from ffn.synthetic.config import SynthConfig
from ffn.training.config import TrainConfig
from ffn.viewing.config import ViewConfig  # noqa: F401
from ffn.workflow.run import RunConfig


def sections_of(model):
    """Iterate over all sections in the `config.py` of packages."""
    for section in model.__subclasses__():
        yield from sections_of(section)
        if section.__module__.endswith(".config"):
            yield section


SECTIONS = sorted(set(sections_of(Section)), key=lambda model: model.__name__)
assert len(SECTIONS) > 30 and RunConfig  # which imports them


class Example(Section):
    """One field of every shape."""

    size_zyx: tuple[PositiveInt, PositiveInt, PositiveInt] = Field((1, 2, 3), description="100 % of a triple")
    axes: tuple[str, ...] = Field(("z",), description="any number")
    mean: float | None = Field(None, description="may be missing")
    limit: int | None = Field(7, description="may be missing, but is there")
    kind: Literal["a", "b"] | PositiveInt = Field("a", description="a choice")
    is_on: bool = Field(True, description="a switch")
    threads: SameResult[PositiveInt | None] = Field(None, description="how, not what")


CHANGED = Example(size_zyx=(9, 8, 7), axes=(), mean=-1e-05, limit=None, kind="b", is_on=False)


def parse(model, words):
    parser = Parser()
    add_options(parser, model)
    return from_arguments(model, parser.parse_args(words))


@pytest.mark.parametrize("model", [*SECTIONS, Example], ids=lambda model: model.__name__)
def test_no_option_means_the_default(model):
    assert parse(model, []) == model()
    assert flags(model()) == ""


@pytest.mark.parametrize(
    "section",
    [
        CHANGED,
        Example(axes=("x", "y z")),
        IngestConfig(kind="labels", voxel_size_zyx_nm=(40, 4.5, 4), offset_zyx=(-5, 0, 12)),
        IngestConfig(intensity_range=(-3.2e-05, 3e04)),
        PartitionConfig(lom_radius_zyx=(3, 4, 5), thresholds=(0.1,), min_label_um3=0.0),
        RecordsConfig(max_records=None),
        ModelConfig(fov_size_zyx=(9, 17, 33), deltas_zyx=(1, 2, 8), image_mean=-128.5),
        SegmentConfig(disco_seed_threshold=-1.0),
        SegmentConfig(seed_points="-1,2,3"),
        ImageConfig(masks=({"path": "-raw.h5:mask", "values": (-3, 4), "invert": True}, {"box": "-5:18,0:4,0:4"})),
        ImageConfig(normalize="match"),
        SynthConfig(neurite_radius_nm=(1 / 3, 50)),
        TrainConfig(preset="dong2019", learning_rate=1e-3, clip_entries=None),  # defaults of ours, given beside it
    ],
    ids=lambda section: type(section).__name__,
)
def test_flags_are_read_back(section):
    assert parse(type(section), shlex.split(flags(section))) == section


def test_options_that_keep_the_result_come_apart_and_have_their_range():
    section = CHANGED.model_copy(update={"threads": 3})
    assert flags(section) == flags(CHANGED) and "--threads" not in flags(CHANGED)
    assert flags(section, result=False) == "--threads 3" and flags(section, ("threads",), result=False) == ""
    assert parse(Example, shlex.split(f"{flags(section)} {flags(section, result=False)}")) == section
    assert section.result_options() == CHANGED.result_options() != Example().result_options()
    with pytest.raises(ConfigError, match="--threads: .*'0'"):
        parse(Example, ["--threads", "0"])


@pytest.mark.parametrize("model", [*SECTIONS, Example], ids=lambda model: model.__name__)
def test_help_shows_meaning_and_default_of_every_option(model):
    parser = argparse.ArgumentParser()
    add_options(parser, model)
    text = " ".join(parser.format_help().split())
    for name, field in model.model_fields.items():
        assert (f"{option_name(name)} " in text) == (name not in model.for_workflow)
        assert field.description, name
    assert text.count("(default:") == len(model.model_fields.keys() - model.for_workflow)
    assert model is not Example or "--kind a|b|INT " in text


def test_headings_and_null_of_the_configuration_on_the_command_line():
    parser = argparse.ArgumentParser()
    add_options(parser, TrainConfig)
    groups = {group.title: {action.dest for action in group._group_actions} for group in parser._action_groups[2:]}
    assert "train options (augmentation)" in groups and not groups.pop("train options")
    assert all(2 <= len(names) <= 12 for names in groups.values())
    assert set().union(*groups.values()) == TrainConfig.model_fields.keys()
    parser = argparse.ArgumentParser()
    add_options(parser, TrainConfig)
    text = " ".join(parser.format_help().split())
    assert "clipping (default: none)" in text and "null" not in text


@pytest.mark.parametrize(
    ("model", "words", "named"),
    [
        (ModelConfig, "--fov-size 9 8 9 --deltas 2 2 2", "fov_size_zyx: 8"),
        (ModelConfig, "--depth nine", "--depth: .*'nine'"),
        (PartitionConfig, "--thresholds 0.5 0.1", r"thresholds: \(0.5, 0.1\)"),
        (IngestConfig, "--voxel-size 4 0 4", "--voxel-size: .*'0'"),
        (IngestConfig, "--kind picture", "--kind: .*'picture'"),
        (ImageConfig, "--masks raw.h5:raw#range=5", r"--masks: .*\['5'\]"),
    ],
)
def test_a_bad_value_names_option_and_value(model, words, named):
    with pytest.raises(ConfigError, match=named) as caught:
        parse(model, words.split())
    assert "\n" not in str(caught.value)


def test_boxes_are_read():
    parser = argparse.ArgumentParser()
    add_box_option(parser)
    assert parser.parse_args(["--box", "0:4,1:5,2:8"]).box.shape == (4, 4, 6)
    assert parser.parse_args([]).box is None
    with pytest.raises(SystemExit):
        parser.parse_args(["--box", "everything"])


def test_extra_values_win_and_commands_may_have_other_defaults():
    parser = argparse.ArgumentParser()
    add_options(parser, Example, skip=("kind",))
    assert from_arguments(Example, parser.parse_args([]), kind="b").kind == "b"
    assert flags(CHANGED, defaults={"kind": CHANGED.kind}) == flags(CHANGED, skip=("kind",))
    assert "--limit 7" in flags(Example(), defaults={"limit": 9}) and "--limit" not in flags(Example())


@pytest.mark.parametrize("words", [["a"], ["=1"], ["a=heavy"], ["a=1", "a=2"]])
def test_malformed_named_values_are_refused(words):
    with pytest.raises(ConfigError, match="--weight"):
        parse_named("--weight", words, float)
    assert parse_named("--weight", ["a=1", "b=2.5"], float) == {"a": 1.0, "b": 2.5}
