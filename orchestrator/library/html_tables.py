"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from orchestrator.core.sanitize import shortened

MOST = 200
"""Maximum characters in a cell."""


def html_table(names: Sequence[str], rows: Iterable[Sequence[Any]], more: str = "") -> str:
    """Return an HTML table. Text from models and documents is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    foot = f"<p>{escape(more)}</p>" if more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"


def _cell(value: Any) -> str:
    return "" if value is None else escape(shortened(str(value), MOST))
