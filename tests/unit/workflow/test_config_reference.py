"""config.yaml is the reference of all options."""

import re

import pytest
import yaml

from ffn.config import Section
from ffn.synthetic.config import SynthConfig
from ffn.workflow.run import RunConfig, VolumeConfig
from ffn.workflow.schema import with_comments

SECTIONS = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


@pytest.fixture(scope="module")
def reference(pytestconfig):
    return (pytestconfig.rootpath / "config.yaml").read_text()


def test_comments_are_the_descriptions_of_the_models(reference):
    assert reference == with_comments(reference), "run: python -m ffn.workflow.schema"


def test_a_comment_names_the_default_where_the_value_differs_and_a_deleted_option_goes():
    text = "merge:\n  threshold: 0.5  # old\n  gone: 1\n"
    assert re.fullmatch(r"merge:\n  threshold: 0.5 +# .*; default 0.7\n", with_comments(text))


@pytest.mark.parametrize("name", SECTIONS)
def test_every_option_of_a_section_is_there(name, reference):
    assert yaml.safe_load(reference)[name].keys() == SECTIONS[name].model_fields.keys()
    lines = [line.strip() for line in reference.splitlines()]
    for first, heading in SECTIONS[name].headings.items():
        assert lines[lines.index(f"# {heading}") + 1].startswith(f"{first}:")


def test_every_option_of_a_volume_is_there(reference):
    (volume,) = yaml.safe_load(reference)["volumes"].values()
    assert volume["synthetic"].keys() == SynthConfig.model_fields.keys()
    hidden = re.findall(r"^    # (\w+): ", reference, re.MULTILINE)
    assert sorted([*volume, *hidden]) == sorted(VolumeConfig.model_fields)


@pytest.mark.parametrize("section", [RunConfig, VolumeConfig, SynthConfig, *SECTIONS.values()])
def test_every_option_has_a_meaning(section):
    options = section.model_fields.items()
    assert [name for name, option in options if not option.description and name not in SECTIONS] == []
