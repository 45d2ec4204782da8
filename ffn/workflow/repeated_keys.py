"""Keys that a configuration file gives twice: YAML takes the last one, and says nothing."""

from __future__ import annotations

from pathlib import Path

import yaml

from ffn.errors import ConfigError


def check_keys(path: str | Path) -> None:
    """Refuse a configuration in which a key is repeated, such as a section, an option or the name of a volume.

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
