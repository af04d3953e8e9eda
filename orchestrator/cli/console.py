"""Console output: results on stdout, live views on stderr. No other module imports rich.

Texts are lines of `text_tables`, formatted for the width of their stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from orchestrator.cli.terminal import safe_output, under
from orchestrator.core.counts import number_of
from orchestrator.core.sanitize import escape_controls
from orchestrator.library.messages import width_of
from orchestrator.reports.text_tables import Line, StyledText

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderableType
    from rich.live import Live
    from rich.segment import Segment

View = Callable[[int | None], Sequence[Line]]
"""A function that returns the lines of a view for a width in columns. None means unlimited."""


class OutputStream:
    """A stream for lines. On a terminal, lines are styled."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.width = width_of(stream)

    def print(self, lines: Iterable[Line]) -> None:
        """Print lines. Raises BrokenPipeError if the reader has closed the pipe."""
        if not self._stream.isatty():
            self._stream.write("".join("".join(span.text for span in line) + "\n" for line in lines))
            return
        console = _console(self._stream)
        console.print(_drawn(lines), crop=False)


def out() -> OutputStream:
    return OutputStream(sys.stdout)


def err() -> OutputStream:
    return OutputStream(sys.stderr)


def text_line(text: str, style: str = "") -> Line:
    return (StyledText(text, style),)


def _console(stream: TextIO) -> Console:
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        """Console that bypasses the safe stream, which would escape styles and cursor moves, and cleans texts
        itself.
        """

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, but a reader may stop early

    return Safe(file=under(stream), highlight=False, markup=False, emoji=False)


def _drawn(lines: Iterable[Line]) -> Group:
    from rich.console import Group
    from rich.text import Text

    def drawn(line: Line) -> Text:
        # rich's Text would drop some control characters, which must stay visible.
        spans = ((escape_controls(span.text), span.style) for span in line)
        return Text.assemble(*spans, no_wrap=True, overflow="ignore")

    return Group(*map(drawn, lines))


class Screen:
    """A view that is redrawn in place on a terminal, cut to the terminal's height."""

    def __init__(self, stream: TextIO, *, transient: bool) -> None:
        self._stream = stream
        self._transient = transient
        self._console: Console | None = None
        self._live: Live | None = None
        self._safe = safe_output()

    @property
    def is_on(self) -> bool:
        return self._live is not None

    def start(self) -> None:
        """Start drawing. Later prints appear above the view."""
        from rich.live import Live

        self._console = _console(self._stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=self._transient)
        self._live.start()
        # rich's own stream wrappers obey some escape sequences.
        self._safe.__enter__()

    def draw(self, view: View) -> None:
        """Draw the view, cut to the height of the terminal."""
        if self._live is not None and self._console is not None:
            height = max(3, self._console.size.height - 1)
            lines = list(view(width_of(self._stream)))
            if len(lines) > height:
                lines[height - 1 :] = [text_line(f"… {number_of(len(lines) - height + 1, 'more line')}", "dim")]
            self._live.update(_drawn(lines), refresh=True)

    def print(self, lines: Iterable[Line]) -> None:
        if self._console is not None:
            self._console.print(_drawn(lines), crop=False)

    def stop(self) -> None:
        if self._live is not None:
            self._safe.__exit__(None, None, None)
            self._live.stop()
            self._live = None


@contextmanager
def watching() -> Iterator[Callable[[View], None]]:
    """Yield a function that redraws a view on stdout. Without a terminal, only the last view is printed."""
    screen, last = Screen(sys.stdout, transient=False), list[View]()

    def draw(view: View) -> None:
        last[:] = [view]
        screen.draw(view)

    if sys.stdout.isatty():
        screen.start()
    try:
        yield draw
    finally:
        screen.stop()
        if last and not sys.stdout.isatty():
            out().print(last[0](out().width))
