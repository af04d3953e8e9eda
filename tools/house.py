"""Draw the rooms of `orchestrator/` from its imports into CONTRIBUTING.md, as `make house` does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
CONTRACTS = ROOT / ".importlinter"
DRAWING = re.compile(r"```mermaid\n.*?```", re.DOTALL)


def drawing() -> str:
    """Return the rooms as a Mermaid chart: an arrow to each room below, but for those that other arrows lead to.

    A dotted arrow is an exception from the order of the rooms.
    """
    folders = {path.parent for path in (ROOT / "orchestrator").glob("*/__init__.py")}
    upward, names = _upward(), {folder.name for folder in folders}
    rooms = {folder.name: names & set(_imported(folder, upward)) - {folder.name} for folder in folders}
    reached = {room: _reached(room, rooms) for room in rooms}
    arrows = [
        f"    {room} --> {one}"
        for room, below in sorted(rooms.items(), key=lambda item: (-len(reached[item[0]]), item[0]))
        for one in sorted(below)
        if not any(one in reached[other] for other in below)
    ]
    dotted = [f"    {_room(module)} -.-> {_room(other)}" for module, other in sorted(upward)]
    return "\n".join(["```mermaid", "flowchart TD", *arrows, *dotted, "```"])


def _upward() -> set[tuple[str, str]]:
    """Return the imports that the contract of the rooms leaves out."""
    contracts = ConfigParser()
    contracts.read(CONTRACTS)
    lines = contracts["importlinter:contract:layers"].get("ignore_imports", "").strip().splitlines()
    return {(one.strip(), other.strip()) for one, _, other in (line.partition("->") for line in lines)}


def _imported(folder: Path, upward: set[tuple[str, str]]) -> Iterator[str]:
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom):
                if (module, node.module) in upward:
                    continue
                names = [f"{node.module}.{name}" for name in names]
            yield from (_room(name) for name in names if name.startswith("orchestrator."))


def _room(module: str) -> str:
    return module.split(".")[1]


def _reached(room: str, rooms: dict[str, set[str]]) -> set[str]:
    """Return the rooms below a room, at any depth."""
    found, waiting = set[str](), list(rooms[room])
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += rooms[one]
    assert room not in found, f"{room} imports itself through other rooms"
    return found


def main() -> None:
    """Replace the drawing in the page."""
    PAGE.write_text(DRAWING.sub(drawing(), PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
