"""Programs on a terminal of so many columns: what they write to it, escape sequences and all."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

import pytest

LINES = 60


def on_terminal(
    arguments: Sequence[str], columns: int = 80, *, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> tuple[int, str]:
    """The exit code of `python ARGUMENTS` and all that it wrote to its terminal, which is its stdout and stderr."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    environ = {**kept, "TERM": "xterm-256color", **(env or {})}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=cwd) as process:
        os.close(theirs)
        parts: list[bytes] = []
        while part := _read(ours):
            parts.append(part)
        code = process.wait(30)
    os.close(ours)
    return code, b"".join(parts).decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


class Terminal:
    """A terminal that this process writes to; `text` is what came so far."""

    def __init__(self, stream: TextIO, ours: int) -> None:
        self.stream = stream
        self._ours = ours
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read_all)
        self._reader.start()

    def _read_all(self) -> None:
        while part := _read(self._ours):
            self._parts.append(part)

    def close(self) -> str:
        """All that was written."""
        self.stream.close()
        self._reader.join()
        os.close(self._ours)
        return b"".join(self._parts).decode().replace("\r\n", "\n")


def in_terminal(call: Callable[[], object], columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a call writes to stdout and stderr where both are a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    terminal = Terminal(os.fdopen(theirs, "w", encoding="utf-8"), ours)
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TERM", "xterm-256color")
            patch.setenv("COLUMNS", str(columns))
            patch.setattr(sys, "stdout", terminal.stream)
            patch.setattr(sys, "stderr", terminal.stream)
            call()
    finally:
        text = terminal.close()
    return text


_SEQUENCE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")


def lines_of(text: str) -> list[str]:
    """The lines of what was written to a terminal, without escape sequences; those drawn over one another apart."""
    return re.split("[\r\n]", _SEQUENCE.sub("", text))
