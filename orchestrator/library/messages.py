"""Messages to the user on standard error, wrapped to the terminal's width."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from orchestrator.reports.text_tables import paragraph

NARROWEST = 20


def say(text: str) -> None:
    sys.stderr.write(paragraph(text, width_of(sys.stderr)) + "\n")


def width_of(stream: TextIO) -> int | None:
    """Return a stream's width in columns; None if it is not a terminal, because programs need unwrapped lines."""
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    try:
        columns = int(told) if told.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(NARROWEST, columns) if columns else 80
