"""Matches result lines to rows if a provider returns changed ids. Pure.

An unchanged id is that row's. An id that differs in case, in surrounding blanks or in a number's zeros is recognised
if only one row can be meant. If several rows' ids differ in no more than that, and the lines do not distinguish them,
no row is guessed: an answer on the wrong row is worse than a missing answer.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection


def normal(custom_id: str) -> str:
    """Return an id without differences in case, blanks and spelling."""
    plain = unicodedata.normalize("NFC", custom_id).strip().casefold()
    return plain.lstrip("0") or "0" if plain.isdecimal() and plain.isascii() else plain


class Recognised:
    """The ids of one batch's result lines: `see` each of them, then ask for their rows."""

    def __init__(self, rows: Collection[str]) -> None:
        self._rows = rows
        forms: dict[str, list[str]] = {}
        for row in rows:
            forms.setdefault(normal(row), []).append(row)
        self._one = {form: names[0] for form, names in forms.items() if len(names) == 1}
        self._alike = {form: names for form, names in forms.items() if len(names) > 1}
        self._exact: set[str] = set()
        self._odd: dict[str, dict[str, set[int]]] = {}
        self._is_changed = False

    def see(self, told: str, content: bytes) -> None:
        """Note a line with this id; its content distinguishes it from another line with the same id."""
        is_row = told in self._rows
        if is_row and not self._alike:
            self._exact.add(told)
            return
        form = normal(told)
        if is_row and form not in self._alike:
            self._exact.add(told)
        elif form in self._one or form in self._alike:
            self._odd.setdefault(form, {}).setdefault(told, set()).add(hash(content))
            self._is_changed |= not is_row

    def row(self, told: str) -> str | None:
        """Return the id of the row that a line with this id is about; None if it has no row, or is ambiguous."""
        form = None
        if told in self._rows and (not self._alike or (form := normal(told)) not in self._alike):
            return told
        form = normal(told) if form is None else form
        if form in self._alike:
            return told if told in self._rows and not self._is_ambiguous(form) else None
        seen = self._odd.get(form, {})
        # Two spellings of one id are two claims to it; if the row was also named exactly, they are duplicates.
        return self._one.get(form) if len(seen) == 1 or self._one.get(form) in self._exact else None

    def is_doubtful(self, told: str) -> bool:
        """True if a line with this id is about one of several rows and it is unclear which."""
        form = normal(told)
        return form in self._alike and self._is_ambiguous(form)

    @property
    def named(self) -> int:
        """Number of rows with a line."""
        spelled = sum(len(seen) == 1 and self._one[form] not in self._exact for form, seen in self._told_of_one())
        alike = sum(len(self._odd.get(form, {})) for form in self._alike if not self._is_ambiguous(form))
        return len(self._exact) + spelled + alike

    def _told_of_one(self) -> list[tuple[str, dict[str, set[int]]]]:
        return [(form, seen) for form, seen in self._odd.items() if form in self._one]

    @property
    def ambiguous(self) -> dict[str, str]:
        """The rows that ambiguous lines may mean, each with an id that a line has."""
        return {
            name: next(iter(self._odd[form]))
            for form, names in self._alike.items()
            if self._is_ambiguous(form)
            for name in names
        }

    def _is_ambiguous(self, form: str) -> bool:
        seen, names = self._odd.get(form, {}), self._alike[form]
        if not seen:
            return False
        is_plain = all(told in self._rows and len(lines) == 1 for told, lines in seen.items())
        return not is_plain or (self._is_changed and len(seen) < len(names))
