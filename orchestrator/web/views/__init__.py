"""One function a page: from the home and the address to what the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.core.errors import UsageError
from orchestrator.core.sanitize import shortened
from orchestrator.web.reader import HomeReader

MOST_DIGITS = 18
"""A database takes no place of more."""


@dataclass(frozen=True, slots=True)
class PageAddress:
    """What the address of a page says: the parts of its path that vary, and its query."""

    path: Mapping[str, Any]
    query: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """A number of the query; None where it is not there, or is none."""
        text = self.query.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def place(self, name: str) -> int:
        """A number of the path. Raises UsageError for anything else, and for one that no row can have."""
        text = str(self.path[name])
        if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
            raise UsageError(f"{shortened(text, MOST_DIGITS)} is not the number of a row or picture")
        return int(text)


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows: a template and its facts. `nav` is the entry of the menu that it belongs to; one that is
    `live` is sent again when it changes."""

    template: str
    title: str
    nav: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    live: bool = True
    status: int = 200


Page = Callable[[HomeReader, PageAddress], View]
