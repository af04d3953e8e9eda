"""Spellings of a job's terms in messages: as options of a command, or as arguments of a call."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum


class TermWords(StrEnum):
    """Ways to write a term in a message."""

    OPTIONS = "options"  # --budget 0.5
    ARGUMENTS = "arguments"  # budget=0.5

    def term(self, name: str, value: str | Decimal | None = None) -> str:
        """Return a term with its value, or only its name if `value` is None."""
        plain = f"{value:f}" if isinstance(value, Decimal) else value
        if self is TermWords.OPTIONS:
            return f"--{name}" if value is None else f"--{name} {plain}"
        if value is None:
            return name
        return f"{name}={plain}" if isinstance(value, Decimal) else f"{name}={value!r}"
