"""Configuration files: keys that are given twice, and those that are not part of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ffn.errors import ConfigError

# Keys that are not part of the run, with examples: environment modules of the site, for `--software-deployment-method
# env-modules`, and an image with the software, for `--software-deployment-method apptainer`.
SOFTWARE = {"modules": "cray-python gcc/12", "container": "ffn.sif"}


def take_software(values: dict[str, Any]) -> dict[str, str]:
    """Take the keys of `SOFTWARE`, which are not part of the run, out of a configuration; missing ones are empty."""
    found = {name: values.pop(name, None) or "" for name in SOFTWARE}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name}: found {value!r}, expected text, such as {SOFTWARE[name]}")
    return found


def check_keys(path: str | Path) -> None:
    """Refuse a configuration in which a key is repeated: YAML takes the last one, and says nothing.

    A file that cannot be read is reported by the code that reads its values.
    """
    try:
        root = yaml.compose(Path(path).read_text("utf-8"), yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return
    for mapping in _mappings(root):
        found: dict[str, yaml.Node] = {}
        for key in (key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)):
            first = found.setdefault(key.value, key)
            if first is not key:
                raise ConfigError(
                    f"{path}: line {key.start_mark.line + 1}: {key.value!r} is also in line "
                    f"{first.start_mark.line + 1}, which would not count, expected it once. Join the two, or rename one"
                )


def _mappings(root: yaml.Node | None) -> list[yaml.MappingNode]:
    """Return all mappings below a node, those that have an anchor once."""
    found: dict[int, yaml.Node] = {}
    todo = [root] if root else []
    while todo:
        node = todo.pop()
        if id(node) not in found and isinstance(node, yaml.CollectionNode):
            found[id(node)] = node
            is_mapping = isinstance(node, yaml.MappingNode)
            todo += [value for _, value in node.value] if is_mapping else node.value
    return [node for node in found.values() if isinstance(node, yaml.MappingNode)]
