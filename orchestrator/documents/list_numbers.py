"""Numbers and bullets of list items, counted as office programs count them. A document's text does not contain
them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_LEVELS = 12
_PLACE = re.compile(r"%([1-9])")
_ROMAN = ((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
          (9, "ix"), (5, "v"), (4, "iv"), (1, "i"))  # fmt: skip


class Level(NamedTuple):
    """Format of a list's level.

    `shape` is one of Word's number formats. `pattern` has %1 to %9 for the levels' numbers.
    """

    shape: str
    pattern: str
    start: int = 1
    is_legal: bool = False  # all levels' numbers are decimal


class Lists:
    """All lists of a document.

    A mark ends with a space. Each level is indented by two more spaces than the level above.
    """

    def __init__(self) -> None:
        self._levels: dict[tuple[str, int], Level] = {}
        self._counts: dict[str, list[int | None]] = {}

    def define(self, name: str, level: int, how: Level) -> None:
        """Define the format of a level of the list `name`. Levels count from 0."""
        self._levels[name, level] = how

    def restart(self, counted_as: str, level: int, start: int) -> None:
        """Give the next item of this level the number `start`."""
        counts = self._counts.setdefault(counted_as, [None] * (MOST_LEVELS + 1))
        counts[max(0, min(level, MOST_LEVELS))] = start - 1

    def mark(self, name: str, level: int, counted_as: str = "") -> str:
        """Return the mark of the next item. Lists with the same `counted_as` share their count."""
        level = max(0, min(level, MOST_LEVELS))
        how = self._levels.get((name, level), Level("bullet", ""))
        counts = self._counts.setdefault(counted_as or name, [None] * (MOST_LEVELS + 1))
        before = counts[level]
        counts[level] = how.start if before is None else before + 1
        counts[level + 1 :] = [None] * (MOST_LEVELS - level)
        indent = "  " * level
        if how.shape == "bullet":
            return f"{indent}- "
        if how.shape in ("none", ""):
            return indent

        def number(found: re.Match[str]) -> str:
            place = int(found[1]) - 1
            at = self._levels.get((name, place), how)
            count = counts[place]
            return in_shape(at.start if count is None else count, "decimal" if how.is_legal else at.shape)

        text = _PLACE.sub(number, how.pattern).strip()
        return f"{indent}{text} " if text else indent


def in_shape(number: int, shape: str) -> str:
    """Return a number in one of Word's number formats."""
    match shape:
        case "lowerLetter" | "upperLetter" if number > 0:
            # Word writes aa after z, and bb after aa.
            text = chr(ord("a") + (number - 1) % 26) * min((number - 1) // 26 + 1, 30)
            return text if shape == "lowerLetter" else text.upper()
        case "lowerRoman" | "upperRoman" if 0 < number < 5000:
            text = _roman(number)
            return text if shape == "lowerRoman" else text.upper()
        case "decimalZero":
            return f"{number:02}"
    return f"{number}"


def _roman(number: int) -> str:
    text = ""
    for value, letters in _ROMAN:
        times, number = divmod(number, value)
        text += letters * times
    return text
