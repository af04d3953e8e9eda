"""Views: functions from a home and an address to the content of a page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sized
from typing import Any

from msgspec import Struct, field

from orchestrator.core.errors import UsageError
from orchestrator.core.sanitize import shortened
from orchestrator.web.reader import HomeReader

MOST_DIGITS = 18
"""Maximum digits of a number in a path. The database can store any number of this length."""


class PageAddress(Struct, frozen=True):
    """Variable parts of a page's path, and its query."""

    path: Mapping[str, Any]
    query: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """Return a number from the query; None if it is missing, not a number, or longer than 9 digits."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def choice(self, name: str, known: Collection[str], usual: str = "") -> str:
        """Return a word from the query, or `usual` if it is missing. Raises UsageError for a word not in `known`."""
        word = self.query.get(name, "").strip() or usual
        if word != usual and word not in known:
            raise UsageError(f"{name}={shortened(word, 40)} is not known; known: {', '.join(known)}")
        return word

    def page(self) -> int:
        """Return the page number of a list from the query. The first page is 0."""
        return self.number("page") or 0

    def place(self, name: str) -> int:
        """Return the number under this name in the path. Raises UsageError unless it is 1 to MOST_DIGITS digits."""
        text = str(self.path[name])
        if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
            raise UsageError(f"{shortened(text, MOST_DIGITS)} is not the number of a row or picture")
        return int(text)


class View(Struct, frozen=True):
    """Content of a page: a template and its facts. `nav` is its menu entry. A `live` page is sent again on change."""

    template: str
    title: str
    nav: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    live: bool = True
    status: int = 200


def require_page(page: int, shown: Sized) -> None:
    if page and not shown:
        raise UsageError("this list has no such page: it has become shorter")


Page = Callable[[HomeReader, PageAddress], View]
