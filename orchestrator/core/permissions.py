"""Permissions of written files: a home is private to its owner, and files elsewhere follow the user's umask.

A command that writes in a home calls `keep_private` at its start. From then on, the process creates only private
files, whatever the folder's permissions. The other functions here give the user's files the user's permissions.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PRIVATE = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_users: int | None = None
"""The umask at the start of the process; None if the process has not changed it."""


def keep_private() -> None:
    """Make all files that this process writes from now on private."""
    global _users
    before = os.umask(_PRIVATE)
    if _users is None:
        _users = before


def users_umask() -> int:
    """Return the user's umask, for programs started on the user's behalf; -1 leaves it unchanged."""
    return -1 if _users is None else _users


def give_to_user(file: int, *, like: Path | None = None) -> None:
    """Give an open file the mode of `like`, the file it replaces. If there is no such file, apply the user's umask.

    Raises OSError.
    """
    if like is not None and like.exists():
        os.fchmod(file, stat.S_IMODE(like.stat().st_mode))
    elif _users is not None:
        os.fchmod(file, 0o666 & ~_users)


def make_folders(path: Path) -> None:
    """Make a folder and its parents, following the user's umask. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if _users is not None:
        for folder in missing:
            folder.chmod(0o777 & ~_users)


def write_text(path: Path, text: str) -> None:
    """Write a text to the user's file. A new file follows the user's umask. Raises OSError."""
    make_file(path)
    path.write_text(text, encoding="utf-8")


def make_file(path: Path) -> None:
    """Create an empty file that follows the user's umask, unless the file exists. Raises OSError."""
    try:
        with path.open("xb") as file:
            give_to_user(file.fileno())
    except FileExistsError:
        return


def readable_by_others(folder: Path) -> str | None:
    """Return a folder's permissions, such as `drwxr-xr-x`, if its group or others have any access. Otherwise return
    None.
    """
    try:
        mode = folder.stat().st_mode
    except OSError:
        return None
    return stat.filemode(mode) if mode & _OTHERS else None
