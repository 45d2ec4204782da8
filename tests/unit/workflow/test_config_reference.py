"""config.yaml is the reference of all options: it names every one and says of each what the models say."""

import re

import yaml

from ffn.config import Section
from ffn.synthetic.config import SynthConfig
from ffn.workflow.run import RunConfig, VolumeConfig


def documented(text: str) -> dict[str, str]:
    """Map 'key' of every line to its comment; keys repeat over sections, so the comments of one key are joined."""
    found: dict[str, str] = {}
    for line in re.sub(r"\n {15,}#", "", text).splitlines():  # a comment may go on below
        key, _, comment = line.strip().lstrip("# ").partition("#")
        name = key.partition(":")[0].strip()
        found[name] = found.get(name, "") + "\n" + comment.strip()
    return found


def sections() -> list[type[Section]]:
    kinds = [field.annotation for field in RunConfig.model_fields.values()]
    return [
        RunConfig,
        VolumeConfig,
        SynthConfig,
        *(k for k in kinds if isinstance(k, type) and issubclass(k, Section)),
    ]


def test_every_option_is_explained_as_in_the_models(pytestconfig):
    comments = documented((pytestconfig.rootpath / "config.yaml").read_text())
    missing = [
        f"{section.__name__}.{name}: {field.description}"
        for section in sections()
        for name, field in section.model_fields.items()
        if field.description and field.description not in comments.get(name, "")
    ]
    assert missing == [], "add these to config.yaml"


def test_lines_have_at_most_120_columns(pytestconfig):
    assert [line for line in (pytestconfig.rootpath / "config.yaml").read_text().splitlines() if len(line) > 120] == []


def test_every_option_has_a_meaning():
    for section in sections():
        for name, field in section.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
            assert field.description or nested, f"{section.__name__}.{name}"


def test_long_sections_are_divided_as_in_the_models(pytestconfig):
    lines = [line.strip() for line in (pytestconfig.rootpath / "config.yaml").read_text().splitlines()]
    for section in sections():
        for name, heading in section.headings.items():
            assert lines[lines.index(f"# {heading}") + 1].startswith(f"{name}:"), f"{section.__name__}: {heading}"


def test_the_order_is_that_of_the_models(pytestconfig):
    values = yaml.safe_load((pytestconfig.rootpath / "config.yaml").read_text())
    for name, field in RunConfig.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            assert list(values[name]) == list(field.annotation.model_fields), name


def test_defaults_named_in_comments_are_the_defaults(pytestconfig):
    values = yaml.safe_load((pytestconfig.rootpath / "config.yaml").read_text())
    comments = documented((pytestconfig.rootpath / "config.yaml").read_text())
    for section in (k for k in sections() if k not in (RunConfig, VolumeConfig, SynthConfig)):
        name = next(n for n, f in RunConfig.model_fields.items() if f.annotation is section)
        for key, field in section.model_fields.items():
            given, default = values[name][key], field.get_default(call_default_factory=True)
            same = tuple(given) == default if isinstance(given, list) else given == default
            assert same or f"default {_text(default)}" in comments[key], f"{name}.{key}: say 'default {_text(default)}'"


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
