"""Locations of orch.toml, the home and the database.

`$ORCH_CONFIG` names orch.toml. By default, it is the first orch.toml in the working directory, its parents, and the
user's config directory. `ORCH_HOME` moves all state, `ORCH_DATABASE_URL` chooses the database. This module imports
little, because read-only commands need no other module of settings.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from orchestrator.core.errors import InputError
from orchestrator.settings.toml_limits import MANY_PARTS, MAX_BYTES

FILE_NAME = "orch.toml"
_DATABASE = re.compile(r"(sqlite|postgres(ql)?)(\+\w+)?://")


class Place(Struct, frozen=True):
    """Paths and addresses of this process's state; `database_timeout` in seconds.

    With `is_found`, orch.toml was found in the working directory or above. The user did not name this file, so it may
    come from somebody else.
    """

    path: Path | None
    home: Path
    database_url: str
    database_timeout: float
    is_found: bool = False


def find_file(environ: Mapping[str, str], start: Path) -> Path | None:
    """Return the orch.toml that applies in `start`, or None."""
    if named := environ.get("ORCH_CONFIG"):
        return start / named
    places = [folder / FILE_NAME for folder in (start, *start.parents)]
    return next((place for place in (*places, _user_file(environ)) if place.is_file()), None)


def _user_file(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "orch" / FILE_NAME


def is_same_file(one: str | Path | None, other: str | Path | None) -> bool:
    """True if two paths of settings files lead to the same file; `None` and `"None"` mean no file."""
    if str(one) == str(other):
        return True
    try:
        return Path(str(one)).samefile(str(other))
    except OSError:
        return False


def locate(environ: Mapping[str, str] = os.environ, start: Path | None = None) -> Place:
    """Find all locations. Raises InputError for an unreadable file or an invalid number."""
    path = find_file(environ, start or Path.cwd())
    said = _locations(path, is_used=not environ.get("ORCH_DATABASE_URL"))
    home = Path(environ.get("ORCH_HOME") or home_beside(path, said.get("home")) or _default_home(environ))
    home = home.expanduser().absolute()
    url = environ.get("ORCH_DATABASE_URL") or said.get("database_url") or f"sqlite:///{home / 'orch.db'}"
    is_found = path is not None and not environ.get("ORCH_CONFIG") and path != _user_file(environ)
    return Place(path, home, _with_driver(url), _seconds(environ, "ORCH_DATABASE_TIMEOUT", 10.0), is_found)


def serve_folder(place: Place) -> Path:
    """Return the default folder of `orch serve`."""
    return place.home / "serve"


def _locations(path: Path | None, *, is_used: bool) -> dict[str, str]:
    """Return `home` and `database_url` of a file. With `is_used`, the URL must be of SQLite or PostgreSQL."""
    if path is None:
        return {}
    try:
        data = _loaded(small_text(path))
    except (OSError, ValueError, RecursionError):
        data = _with_lines(path)
    said: dict[str, Any] = {name: data[name] for name in ("home", "database_url") if name in data}
    for name, value in said.items():
        if not isinstance(value, str):
            raise _mistake("Input should be a valid string", path, name, "put it in quotes")
    if is_used and (url := said.get("database_url")) is not None and not _DATABASE.match(url):
        raise _mistake("is not a database", path, "database_url", "write sqlite:///FILE or postgresql://HOST/NAME")
    return said


def _mistake(message: str, path: Path, field: str, hint: str) -> InputError:
    """Return an error without the value, which may hold a password."""
    keys = [line.partition("=")[0].strip() for line in path.read_text("utf-8-sig").splitlines()]
    line = keys.index(field) + 1 if field in keys else None
    return InputError(message, file=path, line=line, field=field, hint=hint)


def small_text(path: Path) -> str:
    """Read a file. Raises OSError, or ValueError if it has more than MAX_BYTES or is not UTF-8 text."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("too large")
    return content.decode("utf-8-sig")


def _loaded(text: str) -> dict[str, Any]:
    """Parse a settings file. If that fails, parse only the lines before the first table, which hold all locations.

    The readers of the tables parse the file again, and report mistakes in the tables.
    """
    try:
        return parsed(text)
    except (ValueError, RecursionError):
        head = re.split(r"^\s*\[", text, maxsplit=1, flags=re.MULTILINE)
        if len(head) == 1:
            raise
        return parsed(head[0])


def parsed(text: str) -> dict[str, Any]:
    """Parse a settings file without checking its values. Raises ValueError or RecursionError."""
    if MANY_PARTS.search(text):
        raise ValueError("a key of too many parts")
    return tomllib.loads(text)


def _with_lines(path: Path) -> dict[str, Any]:
    """Read the file again, to report mistakes with their lines. This needs a module that is slow to import."""
    from orchestrator.settings.source_lines import load_toml

    return load_toml(path)[0]


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number of seconds", field=name) from None


def home_beside(path: Path | None, home: str | None) -> Path | None:
    """Return the home that a settings file names, resolved against the file's folder, or None."""
    if home is None or path is None:
        return None
    expanded = Path(home).expanduser()
    return expanded if expanded.is_absolute() else path.parent / expanded


def _default_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "orch"


def _with_driver(url: str) -> str:
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
