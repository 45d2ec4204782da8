"""The code keeps to the drawing in docs/architecture.md and to its budgets.

No import points upwards, and there are no circles. `python tests/unit/project/test_architecture.py` prints what the
code weighs.
"""

import argparse
import ast
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Set
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple, get_args
from xml.etree import ElementTree

import pytest
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "ffn"
SVG = "{http://www.w3.org/2000/svg}"
SENTENCE = 4  # words; a test that compares so many depends on the English of a message
PARAMETERS = 6


def modules() -> dict[str, Path]:
    """Files by the names of their modules: ``ffn/io/volume.py`` is `ffn.io.volume`."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or not path.name.startswith("__")]
    return {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def drawn_rooms() -> dict[str, tuple[float, float]]:
    """Packages and loose modules of the drawing, with their height from below and their distance from the left."""
    texts = ElementTree.parse(ROOT / "docs/images/house.svg").iter(f"{SVG}text")
    rooms = [text for text in texts if "room" in text.get("class").split()]
    return {room.text: (-float(room.get("y")), float(room.get("x"))) for room in rooms}


def room_of(module: str) -> str:
    """`ffn.io.volume` is in the room `io`."""
    return module.split(".")[1]


@functools.cache
def imports() -> dict[str, set[str]]:
    """Modules of ffn that each imports, also inside functions and for type checkers alone."""
    files = modules()
    return {module: imported_by(path, files.keys()) for module, path in files.items()}


def imported_by(path: Path, known: Set[str]) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known or {node.module} & known
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found


def test_modules_are_drawn_and_import_no_circle():
    assert set(drawn_rooms()) == set(map(room_of, modules()))
    list(TopologicalSorter(imports()).static_order())  # a CycleError names them


def test_modules_import_from_below_or_from_their_left():
    drawn = drawn_rooms()

    def may_import(own: str, other: str) -> bool:
        (height, left), (other_height, other_left) = drawn[own], drawn[other]
        return own == other or other_height < height or (other_height == height and other_left < left)

    offenders = [
        f"{module} imports {other}"
        for module, others in imports().items()
        for other in sorted(others)
        if not may_import(room_of(module), room_of(other))
    ]
    assert offenders == [], "docs/images/house.svg has what they import above them, or to their right"


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """The syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def sources(folder: str) -> list[Path]:
    """Python files of a folder."""
    return sorted((ROOT / folder).rglob("*.py"))


def nodes_in(folder: str) -> Iterator[ast.AST]:
    return itertools.chain.from_iterable(map(nodes, sources(folder)))


def lines(folder: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in sources(folder))


def code_lines(folder: str) -> int:
    """Lines without blank ones, comments and docstrings."""
    return sum(map(code_lines_of, sources(folder)))


def code_lines_of(path: Path) -> int:
    docstrings = {
        number
        for node in nodes(path)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if ast.get_docstring(node) is not None
        for number in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    code = enumerate(map(str.strip, path.read_text().splitlines()), 1)
    return sum(bool(line) and line[0] != "#" and number not in docstrings for number, line in code)


def command_options() -> int:
    """Options of all commands and their subcommands, `--help` left out."""
    from ffn.cli import COMMANDS, Parser

    total = 0
    for command in COMMANDS.values():
        parser = Parser()
        importlib.import_module(command.module).add_arguments(parser)
        total += options_of(parser)
    return total


def options_of(parser: argparse.ArgumentParser) -> int:
    total = 0
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            total += sum(map(options_of, action.choices.values()))
        else:
            total += bool(action.option_strings) and not isinstance(action, argparse._HelpAction)
    return total


def configuration_leaves() -> int:
    """Options of a configuration file with one volume."""
    from ffn.workflow.run import RunConfig

    return leaves_of(RunConfig)


def leaves_of(section: type[BaseModel]) -> int:
    total = 0
    for field in section.model_fields.values():
        models = [kind for kind in kinds(field.annotation) if isinstance(kind, type) and issubclass(kind, BaseModel)]
        total += max(map(leaves_of, models), default=1)
    return total


def kinds(annotation: Any) -> Iterator[Any]:
    """Types in an annotation, also those that unions and containers hold."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for part in get_args(annotation):
        yield from kinds(part)


def imported_names(module: str) -> int:
    """Names that a module imports from the package: what one must know to change it."""
    imports = [node for node in nodes(ROOT / module) if isinstance(node, ast.ImportFrom) and node.module]
    return len({alias.name for node in imports if node.module.split(".")[0] == "ffn" for alias in node.names})


def long_signatures() -> int:
    """Functions with more than six parameters."""
    functions = [node for node in nodes_in("ffn") if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    parameters = [[*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs] for node in functions]
    return sum(len(names) > PARAMETERS for names in parameters)


def asserted_sentences() -> int:
    """Assertions, and `match=` of `pytest.raises`, on strings of four words or more."""
    asserted = [node.test for node in nodes_in("tests") if isinstance(node, ast.Assert)]
    matched = [node.value for node in nodes_in("tests") if isinstance(node, ast.keyword) and node.arg == "match"]
    return sum(map(has_sentence, [*asserted, *matched]))


def has_sentence(node: ast.AST) -> bool:
    strings = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return any(len(string.split()) >= SENTENCE for string in strings)


class Budget(NamedTuple):
    """A figure that may fall and must not rise."""

    name: str
    measure: Callable[[], int]
    limit: int


BUDGETS = [
    Budget("lines of ffn/", lambda: lines("ffn"), 35_540),
    Budget("code lines of ffn/", lambda: code_lines("ffn"), 23_500),
    Budget("lines of tests/", lambda: lines("tests"), 27_721),
    Budget("command-line options", command_options, 372),
    Budget("configuration leaves", configuration_leaves, 167),
    Budget("names that fill imports", lambda: imported_names("ffn/assembly/fill.py"), 15),
    Budget("names that agglomerate imports", lambda: imported_names("ffn/assembly/agglomerate.py"), 30),
    Budget("names that export imports", lambda: imported_names("ffn/viewing/export.py"), 27),
    Budget("functions with more than 6 parameters", long_signatures, 5),
    Budget("assertions on sentences", asserted_sentences, 48),
    Budget("words of a page", lambda: sorted(len(p.read_text().split()) for p in ROOT.glob("docs/*.md"))[-2], 2_500),
]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: budget.name)
def test_budget_is_kept(budget):
    assert budget.measure() <= budget.limit, budget.name


if __name__ == "__main__":
    for budget in BUDGETS:
        print(f"{budget.name:40} {budget.measure():7,} of {budget.limit:7,}")
