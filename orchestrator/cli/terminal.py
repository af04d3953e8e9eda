"""Safe standard output and error, so that no printed text can control the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from orchestrator.core.sanitize import escape_controls

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C stopped."""


class StreamFault(OSError):
    """A fault of standard output or error, except a closed pipe. `name` is the stream's name."""

    name = ""


class SafeStream:
    """A text stream that makes control characters visible, whoever writes them: a command, a library or a traceback.

    `under` is the raw stream. The console uses it, because it writes escape sequences and cleans its texts itself.
    `buffer` takes bytes, for results that are data.
    """

    def __init__(self, under: TextIO, name: str) -> None:
        self.under = under
        self._name = name

    def write(self, text: str) -> int:
        """Write a text. Raises BrokenPipeError or StreamFault."""
        with self._faults():
            self.under.write(escape_controls(text))
        return len(text)

    def flush(self) -> None:
        """Flush the buffer. Raises BrokenPipeError or StreamFault."""
        with self._faults():
            self.under.flush()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            fault = StreamFault(error.errno, error.strerror)
            fault.name = self._name
            raise fault from error

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.under, name)


@contextmanager
def safe_output() -> Iterator[None]:
    """Make standard output and error safe during a block."""
    before = sys.stdout, sys.stderr
    make_output_safe()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_output_safe() -> None:
    """Make standard output and error safe from now on, including for characters that they cannot encode."""
    sys.stdout, sys.stderr = _safe(sys.stdout, "stdout"), _safe(sys.stderr, "stderr")


def _safe(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:  # closed before this process started
        stream = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if isinstance(stream, SafeStream):
        return stream
    with suppress(AttributeError):  # a test or another program may have replaced the stream
        cast(Any, stream).reconfigure(errors="backslashreplace")
    return cast(TextIO, SafeStream(stream, name))


def under(stream: TextIO) -> TextIO:
    """Return the raw stream below a safe stream."""
    return stream.under if isinstance(stream, SafeStream) else stream


def drop_output(*streams: int) -> None:
    """Discard the streams' buffered output, so that Python does not report it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)
