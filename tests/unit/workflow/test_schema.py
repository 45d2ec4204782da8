"""Editors check a configuration as the models do."""

import json

import jsonschema
import pytest
import yaml

from ffn.workflow.schema import schema

CHECK = jsonschema.Draft202012Validator(json.loads(schema()))


def test_the_schema_on_disk_is_that_of_the_models(pytestconfig):
    written = (pytestconfig.rootpath / "config/schema.json").read_text()
    assert written == schema(), "run: python -m ffn.workflow.schema"


def test_shipped_configurations_name_the_schema_and_fit_it(pytestconfig):
    root = pytestconfig.rootpath
    whole = set((root / "config").glob("*.yaml")) - {root / "config/demo-from-scratch.yaml"}  # added to config.yaml
    for file in (root / "config.yaml", *whole):
        words, named = file.read_text().splitlines()[0].split("$schema=")
        assert words == "# yaml-language-server: " and (file.parent / named).samefile(root / "config/schema.json")
        CHECK.validate(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"trian": {}},
        {"model": {"fov_size_zyx": [33, 33]}},
        {"segment": {"move_threshold": 1.5}},
    ],
)
def test_mistakes_show_in_the_editor(change):
    phantom = {"volumes": {"phantom": {"synthetic": {}}}}
    assert list(CHECK.iter_errors(phantom)) == []
    assert len(list(CHECK.iter_errors({**phantom, **change}))) == 1
