"""The JSON schema of configurations for editors, and the comments in config.yaml, from the models.

``python -m ffn.workflow.schema`` writes both files of a checkout again.
"""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import yaml
from pydantic.fields import FieldInfo

from ffn.config import Section
from ffn.synthetic.config import SynthConfig
from ffn.workflow.run import RunConfig, VolumeConfig

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SITE = {  # keys that are not part of the run
    "modules": {"type": ["string", "null"], "description": "environment modules of the site"},
    "container": {"type": ["string", "null"], "description": "image with the software"},
}
COLUMNS = 120
WIDEST = 52  # key and value; comments of longer ones begin further to the right
OPTION = re.compile(r"(?P<text>(?P<indent> *)(?P<hidden># )?(?P<key>\w+):(?P<value>[^#]*?))(?: +#.*)?")
CONTINUED = re.compile(r" {14,}#.*")


def schema() -> str:
    """Return the schema that follows from the models, as the file has it.

    Relations between options and the existence of files are not in it: ``snakemake -n`` checks them.
    """
    content = RunConfig.model_json_schema()
    content["properties"] = content["properties"] | SITE
    return json.dumps({"$schema": DRAFT, **content}, indent=1, ensure_ascii=False) + "\n"


class _Line(NamedTuple):
    """A line of config.yaml without its comment, the option in it, and where its comment belongs."""

    text: str
    option: FieldInfo | None
    is_shown: bool
    block: tuple[str, int]


def with_comments(text: str) -> str:
    """Return config.yaml with the comments that the models say, without options that they do not have."""
    lines = list(_lines(text))
    written: list[str] = []
    for _, group in itertools.groupby(lines, key=lambda line: line.block):
        block = list(group)
        widths = [len(line.text) for line in block if line.option is not None]
        column = 2 + max((width for width in widths if width <= WIDEST), default=0)
        for line in block:
            written += _commented(line, max(column, len(line.text) + 2)) if line.option else [line.text]
    return "\n".join(written) + "\n"


def _lines(text: str) -> Iterator[_Line]:
    section = ""
    for line in text.splitlines():
        found = OPTION.fullmatch(line)
        if CONTINUED.fullmatch(line):
            continue
        if found and not found["indent"]:
            section = found["key"]
        depth = len(found["indent"]) if found else 0
        options = _model(section, depth).model_fields
        option = options.get(found["key"]) if found else None
        if found is None or not options or (option and not option.description):
            yield _Line(line, None, False, (section, depth))
        elif option is not None:  # others were deleted from the models
            yield _Line(found["text"], option, not found["hidden"], (section, depth))


def _model(section: str, depth: int) -> type[Section]:
    """Return the model of the keys of a section that are indented by `depth`."""
    if depth == 0:
        return RunConfig
    if section == "volumes":
        volume: dict[int, type[Section]] = {4: VolumeConfig, 6: SynthConfig}
        return volume.get(depth, Section)
    sections = {name: kind for name, field in RunConfig.model_fields.items() if _is_section(kind := field.annotation)}
    return sections.get(section, Section)


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def _commented(line: _Line, column: int) -> list[str]:
    assert line.option is not None
    value, default = line.text.partition(":")[2].strip(), _default(line.option)
    given = yaml.safe_load(value) if value else None
    comment = str(line.option.description)
    if line.is_shown and value and default != given and not line.option.is_required():
        comment += f"; default {_text(default)}"
    first, *others = textwrap.wrap(comment, COLUMNS - column - 2, break_long_words=False, break_on_hyphens=False)
    return [f"{line.text:{column}}# {first}", *(f"{'':{column}}# {other}" for other in others)]


def _default(option: FieldInfo) -> Any:
    default = option.get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else default


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    (root / "config/schema.json").write_text(schema())
    reference = root / "config.yaml"
    reference.write_text(with_comments(reference.read_text()))
