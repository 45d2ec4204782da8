"""Configuration files that cannot be read; keys that are unknown, given twice, or not part of the run."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

import ffn.machine.own_packages
from ffn.errors import CHECK_SPELLING, ConfigError

# Keys that are not part of the run, with examples: environment modules of the site, for `--software-deployment-method
# env-modules`, and an image with the software, for `--software-deployment-method apptainer`.
SOFTWARE = {"modules": "cray-python gcc/12", "container": "ffn.sif"}

# The folder of workflow, profiles and config: the checkout, to which the links point, or that in a wheel.
ROOT = (Path(__file__).parents[1] / "pipeline/config.yaml").resolve().parent


def in_root(path: str) -> str:
    """Return a path that is not here, but among the files of the pipeline, as the place there."""
    return str(ROOT / path) if not Path(path).exists() and (ROOT / path).exists() else path


def take_software(values: dict[str, Any]) -> dict[str, str]:
    """Take the keys of `SOFTWARE`, which are not part of the run, out of a configuration; missing ones are empty."""
    found = {name: values.pop(name, None) or "" for name in SOFTWARE}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name}: found {value!r}, expected text, such as {SOFTWARE[name]}")
    return found


def instead_of(path: tuple[str, ...], value: Any, run: Any, volume: Any) -> str:
    """Return what to write for an unknown key: its name where it belongs, or one that it misspells or cuts."""
    sections: dict[str, Any] = {name: info.annotation for name, info in run.model_fields.items()}
    models = {k: m for k, m in sections.items() if hasattr(m, "model_fields")} | {"volumes": volume}
    homes = [section for section, model in models.items() if path[-1] in model.model_fields]
    near = difflib.get_close_matches(path[-1], (models.get(path[0], run) if path[1:] else run).model_fields, 1)
    if near and len(homes) != 1 and sum(line[0] == "-" for line in difflib.ndiff(path[-1], near[0])) < 3:
        return f"expected {near[0]}: {json.dumps(value, default=str)}"
    words = json.dumps({path[-1]: value}, default=str)
    named = " or ".join(f"{each}: {f'{{NAME: {words}}}' if each == 'volumes' else words}" for each in homes)
    return f"expected {named}" if homes else CHECK_SPELLING


def check_configfiles() -> None:
    """End Snakemake with one line if packages, or its configuration, by default config/config.yaml, are unusable.

    The profiles call it, because Snakemake reads the file before the workflow, and would show a traceback or hang.
    """
    try:
        importlib.import_module("ffn.workflow.places")  # with most that the workflow loads
    except ImportError as error:
        if (line := ffn.machine.own_packages.shadow(error)) is None:
            raise
        print(line, file=sys.stderr)
        sys.exit(2)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--configfile", "--configfiles", nargs="*", action="extend", default=[])
    try:
        for path in parser.parse_known_args()[0].configfile or Path().glob("config/config.yaml"):
            check_keys(path)
    except ConfigError as error:
        sys.exit(str(error))


def check_keys(path: str | Path, of_run: bool = False) -> None:
    """Refuse a configuration that is not UTF-8, or repeats a key, of which YAML takes the last.

    That of a run has keys of text alone; another workflow that uses this one may number its samples.
    Errors of syntax are left to Snakemake, which takes JSON, too.
    """
    try:
        root = yaml.compose(_text(path), yaml.SafeLoader)
    except yaml.YAMLError:
        return
    nodes, seen = [root] if root else [], set[yaml.Node]()
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode) and node not in seen:  # an alias is the node itself
            _require_usable([key for key, _ in node.value if isinstance(key, yaml.ScalarNode)], path, of_run)
            nodes += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode) and node not in seen:
            nodes += node.value
        seen.add(node)


def _require_usable(keys: list[yaml.ScalarNode], path: str | Path, of_run: bool) -> None:
    found: dict[str, yaml.Node] = {}
    for key in keys:
        first = found.setdefault(key.value, key)
        here, there = (f"line {each.start_mark.line + 1}" for each in (key, first))
        if (of_run or first is not key) and re.fullmatch(r"-?\d+:-?\d+", key.value):
            raise ConfigError(f"{path}: {here}: YAML ends a box in braces at its comma, before {key.value}. Quote it")
        if first is not key:
            again = f"{path}: {here}: {key.value!r} is also in {there}"
            raise ConfigError(f"{again}, which would not count, expected it once. Join the two, or rename one")
        if of_run and (kind := key.tag.rpartition(":")[2]) not in ("str", "merge"):
            raise ConfigError(f"{path}: {here}: the key {key.value} is of type {kind}, expected text. Put it in quotes")


def _text(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise ConfigError(f"{path}: {reason}, expected a configuration. Targets come before --configfile") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line} is not UTF-8, expected UTF-8. Save the file as UTF-8") from None
