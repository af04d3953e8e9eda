"""Who may read what is written: the home is its owner's alone, and what the user asked for elsewhere is as the user
has it.

A command that writes in a home calls `keep_private` at its start. From then on every file of the process is private
whatever the rights of its folder, but those that are given what the user's own umask would have given them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_PRIVATE = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_users: int | None = None
"""The umask that the process was started with; None where it still holds."""


def keep_private() -> None:
    """From now on nobody else reads what this process writes."""
    global _users
    before = os.umask(_PRIVATE)
    if _users is None:
        _users = before


def users_umask() -> int:
    """The umask that the user has: for programs that are started on the user's behalf; -1 leaves it as it is."""
    return -1 if _users is None else _users


def give_to_user(file: int, *, like: Path | None = None) -> None:
    """Let an open file have the mode of `like`, which it replaces, or what the user's umask gives a new one.

    Raises OSError.
    """
    if like is not None and like.exists():
        os.fchmod(file, stat.S_IMODE(like.stat().st_mode))
    elif _users is not None:
        os.fchmod(file, 0o666 & ~_users)


def make_folders(path: Path) -> None:
    """Make a folder and those above it, as the user's umask has them. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if _users is not None:
        for folder in missing:
            folder.chmod(0o777 & ~_users)


def write_text(path: Path, text: str) -> None:
    """Write a text for the user: a new file is as the user's umask has it. Raises OSError."""
    make_file(path)
    path.write_text(text, encoding="utf-8")


def make_file(path: Path) -> None:
    """Make an empty file as the user's umask has it, where there is none. Raises OSError."""
    try:
        with path.open("xb") as file:
            give_to_user(file.fileno())
    except FileExistsError:
        return


def readable_by_others(folder: Path) -> str | None:
    """How a folder's rights read where others may look into it, such as `drwxr-xr-x`; None where they may not."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return None
    return stat.filemode(mode) if mode & _OTHERS else None
