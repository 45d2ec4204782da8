"""Options of a configuration, and other values for them."""

import types
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from ffn.config import Section


class Leaf(NamedTuple):
    """An option of a configuration: its place, and its place without the name of a volume."""

    path: tuple[str, ...]
    key: str
    annotation: Any
    value: Any
    keeps_result: bool


def leaves_of(section: Section, path: tuple[str, ...] = (), key: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Iterate over all options of a section and the sections in it."""
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves_of(value, (*path, name), (*key, name))
        elif isinstance(value, dict):
            for volume, one in value.items():
                yield from leaves_of(one, (*path, name, volume), (*key, name))
        else:
            yield Leaf((*path, name), ".".join((*key, name)), info.annotation, value, name in section.same_result())


def changes(value: Any, annotation: Any) -> Iterator[Any]:
    """Iterate over other values of a type, of which at least one should be valid."""
    if choices := [choice for choice in literals(annotation) if choice != value]:
        yield from choices
    elif isinstance(value, bool):
        yield not value
    elif value == ():
        yield ["y"]
    elif isinstance(value, tuple):
        for i, part in reversed(list(enumerate(value))):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in changes(part, type(part)))
        yield from ([*value[:-1]], [*value, "y"])
    elif isinstance(value, int):
        yield from (value + 1, value - 1, value + 2, 2 * value, value - 20)
    elif isinstance(value, float):
        yield from (0.9 * value, 1.1 * value, (1 + value) / 2) if value else (0.1, 0.5, 1)
    elif value is None:
        yield from (0.5, 1, 500)


def literals(annotation: Any) -> Iterator[Any]:
    """Iterate over the choices in a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from literals(argument)
