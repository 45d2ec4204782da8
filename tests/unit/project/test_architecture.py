"""The code keeps to the drawing in docs/architecture.md: no import points upwards, and there are no circles."""

import ast
import functools
from collections.abc import Set
from graphlib import TopologicalSorter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "ffn"
SVG = "{http://www.w3.org/2000/svg}"


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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & known or {node.module} & known
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found


def test_the_drawing_has_every_package_and_loose_module():
    assert set(drawn_rooms()) == set(map(room_of, modules()))


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


def test_no_modules_import_each_other_in_a_circle():
    list(TopologicalSorter(imports()).static_order())  # a CycleError names them
