"""Progress of a call: a bar in a notebook, a line on a terminal, an occasional log entry elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from html import escape
from typing import Any

from orchestrator.core.counts import number_of
from orchestrator.core.sanitize import one_line
from orchestrator.library.messages import say, width_of
from orchestrator.reports.progress_words import progress_words
from orchestrator.reports.status import JobDetail
from orchestrator.reports.text_tables import cell_width, wrap

log = logging.getLogger("orch")
"""A logger outside `orchestrator`, because that package's log goes to the home while this process is the daemon."""

DRAW_SECONDS = 0.25
LOG_SECONDS = 10.0


def view_for(*, wanted: bool | None) -> LogView:
    """Return the view that suits the caller: a notebook, a terminal or a log. With `wanted=False`, return a silent
    view.
    """
    if wanted is False:
        return LogView(is_quiet=True)
    if (display := _notebook_display()) is not None:
        return NotebookView(display)
    return TerminalView() if sys.stderr.isatty() else LogView()


def _notebook_display() -> Any:
    """Return `IPython.display` in a notebook, else None. Never imports IPython on its own."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from importlib import import_module

    return import_module("IPython.display")


class LogView:
    """Writes progress to the log `orch`."""

    seconds = LOG_SECONDS

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._drawn_at = float("-inf")
        self._said = ""

    def say(self, text: str) -> None:
        log.info("%s", text.removeprefix("orch: "))

    def warn(self, text: str) -> None:
        """Log a warning. Python prints warnings even if the caller has no log."""
        log.warning("%s", text.removeprefix("orch: "))

    def is_due(self) -> bool:
        return not self._is_quiet and time.monotonic() - self._drawn_at >= self.seconds

    def job(self, detail: JobDetail, rate: float) -> None:
        line = detail.line
        self._draw(progress_words(detail, rate), line.done, line.counts.total)

    def reading(self, documents: int, requests: int, expected: int | None = None) -> None:
        if self.is_due():
            told = f"reading documents: {documents:,} read, {number_of(requests, 'request')}"
            self._draw(told, documents, expected or 0)

    def stop(self) -> None:
        """Stop drawing."""

    def _draw(self, text: str, done: int, total: int) -> None:
        self._drawn_at = time.monotonic()
        if text != self._said:
            self._said = text
            self._show(text, done, total)

    def _show(self, text: str, done: int, total: int) -> None:
        log.info("%s", text)


class TerminalView(LogView):
    """Draws one line on standard error."""

    seconds = DRAW_SECONDS

    def say(self, text: str) -> None:
        self.stop()
        say(text)

    def warn(self, text: str) -> None:
        self.say(text)

    def stop(self) -> None:
        """Clear the line."""
        if self._said:
            self._said = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _show(self, text: str, done: int, total: int) -> None:
        room = (width_of(sys.stderr) or 80) - 1
        line = one_line(text)
        if cell_width(line) > room:
            line = f"{wrap(line, room - 2)[0]} …"  # wrap at a space, because a truncated figure would be wrong
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


class NotebookView(LogView):
    """Draws a bar below the cell, and leaves the last state there."""

    seconds = DRAW_SECONDS

    def __init__(self, display: Any) -> None:
        super().__init__()
        self._display = display
        self._shown: Any = None

    def _show(self, text: str, done: int, total: int) -> None:
        bar = self._display.HTML(progress_html(text, done, total))
        if self._shown is None:
            self._shown = self._display.display(bar, display_id=True)
        else:
            self._shown.update(bar)


def progress_html(text: str, done: int, total: int) -> str:
    return f'<progress value="{done}" max="{max(1, total)}"></progress> {escape(text)}'
