"""Progress of long work: a live view on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.cli.console import Screen, View, err, text_line
from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration, pace_words
from orchestrator.core.money import money
from orchestrator.library.messages import width_of
from orchestrator.reports.progress_words import eta_words, progress_words
from orchestrator.reports.status import JobDetail, RateWindow
from orchestrator.reports.text_tables import Line, StyledText, cell_width, paragraph, sentence, wrap
from orchestrator.reports.words import STATE_STYLE, tokens

PLAIN_SECONDS = 10.0
DRAW_SECONDS = 0.1
BAR = 40


class LiveProgress:
    """Progress of work: a live view on a terminal. Elsewhere, occasional lines, or nothing if `quiet`."""

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._screen = Screen(sys.stderr, transient=True)
        self._said_at = self._drawn_at = float("-inf")
        self._said = ""
        self._rates: dict[str, RateWindow] = {}
        self._begun: dict[str, float] = {}

    def start(self) -> None:
        if not self._quiet and sys.stderr.isatty():
            self._screen.start()

    def stop(self) -> None:
        self._screen.stop()

    def say(self, text: str) -> None:
        """Print a permanent message, and clear the view until the next draw."""
        self.show(lambda width: [text_line(part) for part in paragraph(text, width).split("\n")])

    warn = say

    def show(self, view: View) -> None:
        if self._screen.is_on:
            self._screen.draw(lambda width: ())
            self._screen.print(view(width_of(sys.stderr)))
        else:
            err().print(view(err().width))

    def reading(self, documents: int, requests: int, expected: int | None = None) -> None:
        """Show the progress of reading documents. `expected` is their total number, None while unknown."""
        if not self.is_due():
            return
        rate = self._rate("documents", documents)
        done = f"{documents:,} read" if expected is None else f"{documents:,} of {expected:,}"
        told = f"reading documents: {done}, {number_of(requests, 'request')}"
        if rate:
            told += f", {rate:,.0f} documents/s"
        if rate and expected is not None and expected > documents:
            told += f", ETA {duration((expected - documents) / rate)}"
        self._draw(_plain(told), told)

    def elapsed(self, what: str, seconds: float) -> None:
        """Show the elapsed seconds of work whose length is unknown."""
        if self.is_due():
            told = f"{what}: {duration(seconds)}"
            self._draw(_plain(told), told)

    def counted(self, what: str, done: int, total: int, unit: str) -> None:
        """Show the progress of work of known size. `unit` names the counted things (`rows`, `MB`)."""
        # Without a terminal, show only work that takes long.
        began = self._begun.setdefault(what, self._clock())
        if not self.is_due() or (not self._screen.is_on and self._clock() - began < PLAIN_SECONDS):
            return
        rate = self._rate(what, done)
        left = duration((total - done) / rate) if rate and total > done else "—"
        told = f"{what}: {done:,} of {total:,} {unit}, {rate:,.0f}/s, ETA {left}"
        self._draw(_plain(told), told)

    def job(self, detail: JobDetail, rate: float) -> None:
        """Show the progress of a job. `rate` is the recent rate in rows per second."""
        eta = eta_words(detail, rate)
        self._draw(lambda width: job_view(detail, rate, eta, width or 80), progress_words(detail, rate))

    def note(self, text: str) -> None:
        """Print a permanent message about the running work, unless `quiet`."""
        if not self._quiet:
            self.say(text)

    def step(self, text: str) -> None:
        """Show the current step until the next step begins, on a terminal only."""
        if self._screen.is_on:
            self._screen.draw(_plain(text))

    def _rate(self, what: str, done: int) -> float:
        return self._rates.setdefault(what, RateWindow()).add(self._clock(), done)

    def is_due(self) -> bool:
        """Return True if a draw would show something now.

        Check this before a draw. Progress may arrive many thousand times a second, and a draw may count all rows of a
        job.
        """
        now = self._clock()
        if self._screen.is_on:
            return now - self._drawn_at >= DRAW_SECONDS
        return not self._quiet and now - self._said_at >= PLAIN_SECONDS

    def _draw(self, view: View, plain: str) -> None:
        if not self.is_due():
            return
        if self._screen.is_on:
            self._drawn_at = self._clock()
            self._screen.draw(view)
        elif plain != self._said:
            self._said_at, self._said = self._clock(), plain
            self.say(plain)


def _plain(text: str) -> View:
    return lambda width: sentence(text, width)


def job_view(detail: JobDetail, rate: float, eta: str, width: int) -> list[Line]:
    line = detail.line
    count = f"{line.done:,}/{line.counts.total:,}"
    lines: list[Line] = []
    name = f"{line.job.id}  "
    room = width - cell_width(name) - len(line.state) - len(count) - 4
    if room < BAR // 4:
        lines += [(StyledText(part, "bold"),) for part in wrap(line.job.id, width)]
        name, room = "", width - len(line.state) - len(count) - 4
    bar = _bar(line.done, line.counts.total, min(BAR, max(4, room)))
    lines.append(
        (
            StyledText(name, "bold"),
            StyledText(f"{line.state}  ", STATE_STYLE.get(line.state, "")),
            *bar,
            StyledText(f"  {count}"),
        )
    )
    used = tokens(detail.usage, detail.answered_itself)
    facts = (pace_words(rate), f"ETA {eta}", used, f"{money(line.cost)} so far")
    lines += sentence("   ".join(filter(None, facts)), width)
    if detail.reasons:
        failed = ", ".join(f"{one.rows:,} {one.code}" for one in detail.reasons[:4])
        more = f", and {number_of(len(detail.reasons) - 4, 'more reason')}" if len(detail.reasons) > 4 else ""
        lines += sentence(f"failed: {failed}{more}", width, "red")
    if told := detail.problem or next((shard.held for shard in detail.held), None):
        lines += sentence(told, width, "yellow")
    return lines


def _bar(done: int, total: int, width: int) -> Sequence[StyledText]:
    full = width * done // max(1, total)
    return StyledText("━" * full, "green"), StyledText("─" * (width - full), "dim")


@contextmanager
def progress(*, quiet: bool) -> Iterator[LiveProgress]:
    view = LiveProgress(quiet=quiet)
    view.start()
    try:
        yield view
    finally:
        view.stop()
