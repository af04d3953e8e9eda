"""Where orch.toml, the home and the database are. Light: a command that only looks needs no more than this.

`orch.toml` is `$ORCH_CONFIG`, or the first found in the working directory, its parents, and the user's config
directory. `ORCH_HOME` moves all state, `ORCH_DATABASE_URL` chooses the database.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.errors import InputError

FILE_NAME = "orch.toml"


@dataclass(frozen=True, slots=True)
class Place:
    """Paths and addresses of this process's state; `database_timeout` in seconds.

    `is_found` says that orch.toml lay in the working directory or above it: nobody named it, and it may have come
    with somebody else's files.
    """

    path: Path | None
    home: Path
    database_url: str
    database_timeout: float
    is_found: bool = False


def find_file(environ: Mapping[str, str], start: Path) -> Path | None:
    """The orch.toml that holds for `start`, or None."""
    if named := environ.get("ORCH_CONFIG"):
        return start / named
    places = [folder / FILE_NAME for folder in (start, *start.parents)]
    return next((place for place in (*places, _users(environ)) if place.is_file()), None)


def _users(environ: Mapping[str, str]) -> Path:
    """The user's own orch.toml, for wherever there is no other."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "orch" / FILE_NAME


def is_same_file(one: str | Path | None, other: str | Path | None) -> bool:
    """Whether two names of settings files stand for the same one; `None` and `"None"` stand for none."""
    if str(one) == str(other):
        return True
    try:
        return Path(str(one)).samefile(str(other))
    except OSError:
        return False


def locate(environ: Mapping[str, str] = os.environ, start: Path | None = None) -> Place:
    """Read where everything is. Raises InputError for a file that cannot be read and a number that is none."""
    path = find_file(environ, start or Path.cwd())
    said = _said(path)
    home = Path(environ.get("ORCH_HOME") or home_beside(path, said.get("home")) or _default_home(environ))
    home = home.expanduser().absolute()
    url = environ.get("ORCH_DATABASE_URL") or said.get("database_url") or f"sqlite:///{home / 'orch.db'}"
    is_found = path is not None and not environ.get("ORCH_CONFIG") and path != _users(environ)
    return Place(path, home, _with_driver(url), _seconds(environ, "ORCH_DATABASE_TIMEOUT", 10.0), is_found)


def serve_folder(place: Place) -> Path:
    """Where `orch serve` keeps its files, unless it is told another folder."""
    return place.home / "serve"


def _said(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        data = _loaded(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        data = _told(path)
    said: dict[str, Any] = {name: data[name] for name in ("home", "database_url") if name in data}
    for name, value in said.items():
        if not isinstance(value, str):
            raise InputError("Input should be a valid string", file=path, field=name)
    return said


def _loaded(text: str) -> dict[str, Any]:
    """What a settings file says, or what stands before its first table: where the state is does not hang on the rest.

    Whoever needs the rest reads it again, and shows what is wrong with it.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        head = re.split(r"^\s*\[", text, maxsplit=1, flags=re.MULTILINE)
        if len(head) == 1:
            raise
        return tomllib.loads(head[0])


def _told(path: Path) -> dict[str, Any]:
    """Read it again by what knows the line of a mistake, and is too heavy to be imported where there is none."""
    from orchestrator.settings.source_lines import load_toml

    return load_toml(path)[0]


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise InputError(f"{text!r} is not a number of seconds", field=name) from None


def home_beside(path: Path | None, home: str | None) -> Path | None:
    """The home that a settings file names; a relative one is beside the file. None where it names none."""
    if home is None or path is None:
        return None
    expanded = Path(home).expanduser()
    return expanded if expanded.is_absolute() else path.parent / expanded


def _default_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "orch"


def _with_driver(url: str) -> str:
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)
