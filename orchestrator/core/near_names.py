"""Known names that look like an unknown name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path


def meant(name: str, known: Iterable[str]) -> str | None:
    """Return a "did you mean" question about the most similar known name; None if no known name is similar."""
    return _question(name, {one.casefold(): one for one in known})


def _question(name: str, known: Mapping[str, str]) -> str | None:
    near = get_close_matches(name.casefold(), known, 1)
    return f"did you mean {known[near[0]]!r}?" if near else None


def near_words(name: str, known: Iterable[str]) -> str:
    """Return up to three similar known names, worded to end a sentence; empty if no known name is similar."""
    near = ", ".join(get_close_matches(name, [*known], 3))
    return f"; near to it: {near}" if near else ""


def meant_file(path: str, never: tuple[str, ...] = ()) -> str | None:
    """Return a "did you mean" question about the most similarly named file or folder beside `path`, or None.

    Names that end with an entry of `never` are left out. Extensions are not compared, but names with the same
    extension come first.
    """
    missing = Path(path)
    try:
        beside = sorted(one for one in missing.parent.iterdir() if not one.name.endswith(never))
    except OSError:
        return None
    for group in ([one for one in beside if one.name.endswith(missing.suffix)], beside):
        if asked := _question(missing.stem, {one.stem.casefold(): one.name for one in group}):
            return asked
    return None
