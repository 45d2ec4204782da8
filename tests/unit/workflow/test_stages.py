"""The one list of stages agrees with commands, sections, rules, needs and docs/stages.md."""

import argparse
import importlib
import inspect
import re
import shlex
import string
from pathlib import Path

import pytest

from ffn.workflow.stages import STAGES, rules_of

from .runs import pipeline

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_a_command_a_rule_file_and_its_section(name):
    add_arguments = importlib.import_module(STAGES[name].module).add_arguments
    add_arguments(parser := argparse.ArgumentParser())
    parser.parse_args(shlex.split(inspect.getdoc(add_arguments).rpartition(f"ffn {name} ")[2]))
    rules = (ROOT / f"rules/{name.replace('-', '_')}.smk").read_text()
    named = re.findall(r"^(?:rule|use rule \w+ as) (\w+)", rules, re.MULTILINE)
    assert set(named) == set(rules_of(name))


@pytest.mark.parametrize("stage", STAGES.values(), ids=list(STAGES))
def test_outputs_are_made_of_what_the_pipeline_knows(stage):
    for output in stage.outputs:
        wildcards = {name for _, name, _, _ in string.Formatter().parse(output.path) if name}
        assert wildcards <= {"volume", "order", "subvolume", "step"}
        assert ("subvolume" in wildcards) == output.boxes
        assert hasattr(pipeline(), output.of)


def test_no_two_stages_write_the_same_file():
    paths = [output.path for name, stage in STAGES.items() for output in stage.outputs if name != "synth"]
    assert len(paths) == len(set(paths))
