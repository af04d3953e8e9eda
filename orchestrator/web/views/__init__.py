"""Views: functions from a home and an address to the content of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from orchestrator.core.errors import UsageError
from orchestrator.core.sanitize import shortened
from orchestrator.web.reader import HomeReader

MOST_DIGITS = 18
"""Maximum number of digits of a number that the database can store."""


class PageAddress(Struct, frozen=True):
    """Variable parts of a page's path, and its query."""

    path: Mapping[str, Any]
    query: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """Return a number of the query, or None if it is missing or not a number."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def place(self, name: str) -> int:
        """Return a number of the path. Raises UsageError if it is not a number or has too many digits."""
        text = str(self.path[name])
        if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
            raise UsageError(f"{shortened(text, MOST_DIGITS)} is not the number of a row or picture")
        return int(text)


class View(Struct, frozen=True):
    """Content of a page: a template and its facts. `nav` is its menu entry; a `live` page is sent again on change."""

    template: str
    title: str
    nav: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    live: bool = True
    status: int = 200


Page = Callable[[HomeReader, PageAddress], View]
