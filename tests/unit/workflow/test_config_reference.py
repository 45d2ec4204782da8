"""config.yaml is the reference of all options, and their schema finds slips."""

import json
import re

import jsonschema
import pytest
import yaml
from reference import schema, table, with_comments

from ffn.config import Section
from ffn.synthetic.config import SynthConfig
from ffn.workflow.run import RunConfig, VolumeConfig

SECTIONS = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


@pytest.fixture(scope="module")
def reference(pytestconfig):
    return (pytestconfig.rootpath / "config.yaml").read_text()


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
    assert reference == with_comments(reference), "run: python tools/reference.py"


@pytest.mark.parametrize("section", [RunConfig, VolumeConfig, SynthConfig, *SECTIONS.values()])
def test_every_option_has_a_meaning(section):
    options = section.model_fields.items()
    assert [name for name, option in options if not option.description and name not in SECTIONS] == []


CHECK = jsonschema.Draft202012Validator(json.loads(schema()))


def test_schema_and_table_on_disk_are_those_of_the_models(pytestconfig):
    written = (pytestconfig.rootpath / "config/schema.json").read_text()
    assert written == schema(), "run: python tools/reference.py"
    assert table() in (pytestconfig.rootpath / "docs/stages.md").read_text(), "run: python tools/reference.py"


def test_shipped_configurations_name_the_schema_and_fit_it(pytestconfig):
    root = pytestconfig.rootpath
    others = {path.resolve() for path in (root / "config").glob("*.yaml")}  # one is a link to config.yaml
    for file in others - {root / "config/demo-from-scratch.yaml"}:  # added to config.yaml
        words, named = file.read_text().splitlines()[0].split("$schema=")
        assert words == "# yaml-language-server: " and (file.parent / named).samefile(root / "config/schema.json")
        CHECK.validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "change", [{"trian": {}}, {"model": {"fov_size_zyx": [33, 33]}}, {"segment": {"move_threshold": 1.5}}]
)
def test_mistakes_show_in_the_editor(change):
    phantom = {"volumes": {"phantom": {"synthetic": {}}}}
    assert list(CHECK.iter_errors(phantom)) == []
    assert len(list(CHECK.iter_errors({**phantom, **change}))) == 1
