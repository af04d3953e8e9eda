"""Known names that look like an unknown name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, known: Iterable[str]) -> str | None:
    """Ask whether the known name that looks most like `name` is meant; None if no name looks like it."""
    names = {one.casefold(): one for one in known}
    near = get_close_matches(name.casefold(), names, 1)
    return f"did you mean {names[near[0]]!r}?" if near else None


def near_words(name: str, known: Iterable[str]) -> str:
    """Return the known names that look most like `name`, as the end of a sentence; empty if no name looks like it."""
    near = ", ".join(get_close_matches(name, [*known], 3))
    return f"; near to it: {near}" if near else ""


def meant_file(path: str, never: tuple[str, ...] = ()) -> str | None:
    """Ask whether the file or folder beside `path` that looks most like it is meant.

    Names that end in `never` are left out.
    """
    folder, name = os.path.split(path)
    try:
        return meant(name, [entry.name for entry in os.scandir(folder or ".") if not entry.name.endswith(never)])
    except OSError:
        return None
