"""The distance between a quote and a place in a text, in characters that OCR has wrong, missing or added. Pure.

Digits, and punctuation next to them, must be the same: no step changes, drops or adds one.
"""

from __future__ import annotations

from collections.abc import Iterator

_NEVER = 1 << 30


class OutOfSteps(Exception):
    """A search has used up its steps."""


class Steps:
    """The remaining steps of a search."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, steps: int) -> None:
        """Use up steps. Raises OutOfSteps."""
        self._left -= steps
        if self._left < 0:
            raise OutOfSteps


def distance_places(
    text: str, form: str, at: int, offset: int, size: int, most: int, steps: Steps
) -> Iterator[tuple[int, int, int]]:
    """Yield `(start, end, distance)` of the form, whose piece of `size` characters from `offset` stands at `at`, if
    close."""
    head, tail = form[:offset], form[offset + size :]
    left = text[max(0, at - len(head) - most) : at]
    before = _reach(head[::-1], left[::-1], most, steps)
    if before is None:
        return
    right = text[at + size : at + size + len(tail) + most]
    after = _reach(tail, right, most - before[0], steps)
    if after is not None:
        yield at - before[1], at + size + after[1], before[0] + after[0]


def _reach(form: str, text: str, most: int, steps: Steps) -> tuple[int, int] | None:
    """Return the least distance from the form to a beginning of the text, and its length; None beyond `most`."""
    row = [0] + [_NEVER] * len(text)
    for column in range(1, min(len(text), most) + 1):
        row[column] = row[column - 1] + _cost(text, column - 1)
    for index, wanted in enumerate(form, 1):
        first, last = max(1, index - most), min(len(text), index + most)
        steps.take(last - first + 2)
        drop = _cost(form, index - 1)
        next_row = [_NEVER] * len(row)
        if index <= most:
            next_row[0] = row[0] + drop
        for column in range(first, last + 1):
            is_same = text[column - 1] == wanted
            change = 0 if is_same else max(drop, _cost(text, column - 1))
            next_row[column] = min(
                row[column - 1] + change, row[column] + drop, next_row[column - 1] + _cost(text, column - 1)
            )
        row = next_row
        if min(row[first - 1 : last + 1], default=_NEVER) > most:
            return None
    best = min(row)
    if best > most:
        return None
    # Prefer the end nearest to the form's own length.
    length = min((at for at, cost in enumerate(row) if cost == best), key=lambda at: (abs(at - len(form)), at))
    return best, length


def _cost(text: str, at: int) -> int:
    """Return the cost of changing or dropping a character: prohibitive for digits, and punctuation beside them."""
    character = text[at]
    if character.isdecimal():
        return _NEVER
    is_beside = text[max(0, at - 1) : at].isdecimal() or text[at + 1 : at + 2].isdecimal()
    return _NEVER if is_beside and not character.isalnum() else 1
