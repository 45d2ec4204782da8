"""The code keeps to the drawing in docs/architecture.md: no import points upwards, and there are no circles."""

import ast
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "ffn"
SVG = "{http://www.w3.org/2000/svg}"


def drawn_rooms() -> dict[str, tuple[float, float]]:
    """Packages and loose modules of the drawing, with their height from below and their distance from the left."""
    texts = ElementTree.parse(ROOT / "docs/images/house.svg").iter(f"{SVG}text")
    rooms = [text for text in texts if "room" in text.get("class").split()]
    return {room.text: (-float(room.get("y")), float(room.get("x"))) for room in rooms}


def room_of(module: str) -> str:
    """``ffn.io.volume`` is in the room `io`."""
    return module.split(".")[1]


def rooms_imported_by(path: Path) -> set[str]:
    """Rooms that a module imports from, also inside functions and for type checkers alone."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "ffn":
            found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ffn."):
            found.add(room_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names if alias.name.startswith("ffn.")}
    return found


def own_room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE or not path.name.startswith("__")]


def test_the_drawing_has_every_package_and_loose_module():
    assert set(drawn_rooms()) == {own_room(path) for path in modules()}


def test_modules_import_from_below_or_from_their_left():
    drawn = drawn_rooms()

    def may_import(own: str, other: str) -> bool:
        (height, left), (other_height, other_left) = drawn[own], drawn[other]
        return other_height < height or (other_height == height and other_left < left)

    offenders = [
        f"{path.relative_to(ROOT)} imports {room}"
        for path in modules()
        for room in sorted(rooms_imported_by(path) - {own_room(path)})
        if not may_import(own_room(path), room)
    ]
    assert offenders == [], "docs/images/house.svg has what they import above them, or to their right"
