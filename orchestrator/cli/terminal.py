"""Standard output and error as people see them: how wide they are, and that nothing printed can act on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from orchestrator.core.sanitize import escape_controls

NARROWEST = 20


class SafeStream:
    """A text stream that shows control characters, whoever writes to it: a command, a library, a traceback.

    `under` is the stream itself, for the one writer that has escape sequences of its own: the console, which cleans
    its texts itself. `buffer` is the bytes below, for results that are data.
    """

    def __init__(self, under: TextIO) -> None:
        self.under = under

    def write(self, text: str) -> int:
        self.under.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.under, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """Standard output and error are safe for the length of a block."""
    before = sys.stdout, sys.stderr
    make_output_safe()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_output_safe() -> None:
    """From now on standard output and error are safe, and take characters that they cannot encode."""
    sys.stdout, sys.stderr = _safe(sys.stdout), _safe(sys.stderr)


def _safe(stream: TextIO | None) -> TextIO:
    if stream is None:  # it was closed before we began
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (open to the end)
    if isinstance(stream, SafeStream):
        return stream
    with suppress(AttributeError):  # some other program's stand-in for a stream
        cast(Any, stream).reconfigure(errors="backslashreplace")
    return cast(TextIO, SafeStream(stream))


def under(stream: TextIO) -> TextIO:
    """The stream below a safe one."""
    return stream.under if isinstance(stream, SafeStream) else stream


def width_of(stream: TextIO) -> int | None:
    """How many columns a stream has; None where it is not a terminal: what a program reads keeps its lines whole."""
    if not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    try:
        columns = int(told) if told.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(NARROWEST, columns) if columns else 80
