"""The points of a bench in a file: each is on disk before the next starts, so a kill loses only the current one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.core.atomic import durable
from orchestrator.core.errors import StorageError
from orchestrator.core.wire import JSON_ERRORS


@dataclass(frozen=True, slots=True)
class BenchNote:
    """A named measurement, such as `sweep/64` or `mode/static`; `told` has its figures in JSON form."""

    name: str
    told: dict[str, Any]


class Notebook:
    """Notes by name, in order of creation. Raises StorageError if the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._notes, whole = _read(path)
            if path.exists() and path.stat().st_size > whole:
                os.truncate(path, whole)  # the rest of a killed write
        except OSError as error:
            raise StorageError(f"{path} cannot be used: {error.strerror}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._notes

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the figures under a name, or None."""
        return self._notes.get(name)

    def under(self, folder: str) -> list[BenchNote]:
        """Return the notes whose names begin with `folder/`."""
        return [BenchNote(name, told) for name, told in self._notes.items() if name.startswith(f"{folder}/")]

    def add(self, name: str, told: dict[str, Any]) -> None:
        """Add a note, durably."""
        line = msgspec.json.encode({"name": name, "told": told}) + b"\n"
        try:
            with self._path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error
        self._notes[name] = told

    def clear(self) -> None:
        """Delete all notes."""
        with durable(self._path):
            pass
        self._notes = {}


class _Line(msgspec.Struct):
    name: str
    told: dict[str, Any]


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the complete lines of the file, and their end."""
    found: dict[str, dict[str, Any]] = {}
    end = 0
    if not path.exists():
        return found, end
    with path.open("rb") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            try:
                line = msgspec.json.decode(raw, type=_Line)
            except JSON_ERRORS:
                break
            found[line.name] = line.told
            end += len(raw)
    return found, end
