"""What the models and the list of stages say, for people: config/schema.json, comments of config.yaml, docs/stages.md.

``python tools/reference.py`` writes all three again.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ffn.synthetic.config import SynthConfig
from ffn.workflow.run import RunConfig, VolumeConfig
from ffn.workflow.stages import STAGES, Stage

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SITE = {"modules": "environment modules of the site", "container": "image with the software"}  # not part of the run
COLUMNS = 120
COLUMN = 36  # of comments; after longer lines, they begin further to the right
OPTION = re.compile(r"(?P<text>(?P<indent> *)(?P<hidden># )?(?P<key>\w+):(?P<value>[^#]*?))(?: +#.*)?")
CONTINUED = re.compile(r" {14,}#.*")
TABLE = re.compile(r"^\| stage \|.*?(?=\n\n)", re.DOTALL | re.MULTILINE)


def schema() -> str:
    """Return the schema that follows from the models, as the file has it.

    Relations between options and the existence of files are not in it: ``snakemake -n`` checks them.
    """
    content = RunConfig.model_json_schema()
    content["properties"] |= {name: {"type": ["string", "null"], "description": text} for name, text in SITE.items()}
    return json.dumps({"$schema": DRAFT, **content}, indent=1, ensure_ascii=False) + "\n"


def with_comments(text: str) -> str:
    """Return config.yaml with the comments that the models say, without options that they do not have."""
    written, section = [], ""
    for line in text.splitlines():
        if CONTINUED.fullmatch(line):
            continue
        found = OPTION.fullmatch(line)
        if found and not found["indent"]:
            section = found["key"]
        options = _model(section, len(found["indent"])).model_fields if found else {}
        if found is None or not options:
            written.append(line)
        elif option := options.get(found["key"]):  # others were deleted from the models
            written += _commented(found["text"], found["value"], option, bool(found["hidden"]))
    return "\n".join(written) + "\n"


def _model(section: str, depth: int) -> type[BaseModel]:
    """Return the model of the keys of a section that are indented by `depth`, one without fields for others."""
    if depth == 0:
        return RunConfig
    if section == "volumes":
        volume: dict[int, type[BaseModel]] = {4: VolumeConfig, 6: SynthConfig}
        return volume.get(depth, BaseModel)
    kind = RunConfig.model_fields[section].annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else BaseModel


def _commented(text: str, value: str, option: FieldInfo, is_hidden: bool) -> list[str]:
    if not option.description:
        return [text]
    column, default, comment = max(COLUMN, len(text) + 2), _default(option), option.description
    if value.strip() and not is_hidden and default != yaml.safe_load(value) and not option.is_required():
        comment += f"; default {_text(default)}"
    first, *others = textwrap.wrap(comment, COLUMNS - column - 2, break_long_words=False, break_on_hyphens=False)
    return [f"{text:{column}}# {first}", *(f"{'':{column}}# {other}" for other in others)]


def _default(option: FieldInfo) -> Any:
    default = option.get_default(call_default_factory=True)
    return list(default) if isinstance(default, tuple) else default


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def table() -> str:
    """Return the table of stages in docs/stages.md."""
    rows = [f"| `{name}` | {stage.title} | {_files(stage)} |" for name, stage in STAGES.items()]
    return "\n".join(["| stage | what it does | what it makes, under `results/<run>/` |", "| --- | --- | --- |", *rows])


def _files(stage: Stage) -> str:
    paths = [f"`{output.path}`" for output in stage.outputs if "{step}" not in output.path]
    return ", ".join(paths).replace("{order}", "").replace("{", "<").replace("}", ">")


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    (root / "config/schema.json").write_text(schema())
    config, stages = root / "config.yaml", root / "docs/stages.md"
    config.write_text(with_comments(config.read_text()))
    stages.write_text(TABLE.sub(table(), stages.read_text()))
