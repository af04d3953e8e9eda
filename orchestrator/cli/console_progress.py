"""How far long work is: a live view on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from orchestrator.cli.console import Screen, View, err, text_line
from orchestrator.cli.layout import Line, StyledText, cell_width, paragraph, sentence, wrap
from orchestrator.cli.terminal import width_of
from orchestrator.core.durations import duration
from orchestrator.core.money import money
from orchestrator.reports.status import JobDetail, RateWindow
from orchestrator.reports.words import STATE_STYLE, tokens

PLAIN_SECONDS = 10.0
DRAW_SECONDS = 0.1
BAR = 40


class LiveProgress:
    """A live view of work on a terminal; elsewhere a line now and then, and nothing when `quiet`."""

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._screen = Screen(sys.stderr, transient=True)
        self._said_at = self._drawn_at = float("-inf")
        self._said = ""
        self._rates: dict[str, RateWindow] = {}
        self._begun: dict[str, float] = {}

    def start(self) -> None:
        """Begin to draw."""
        if not self._quiet and sys.stderr.isatty():
            self._screen.start()

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self._screen.stop()

    def say(self, text: str) -> None:
        """A message that stays; what was drawn before it goes."""
        self.show(lambda width: [text_line(part) for part in paragraph(text, width).split("\n")])

    def show(self, view: View) -> None:
        """Lines that stay."""
        if self._screen.is_on:
            self._screen.draw(lambda width: ())
            self._screen.print(view(width_of(sys.stderr)))
        else:
            err().print(view(err().width))

    def reading(self, documents: int, requests: int, expected: int | None = None) -> None:
        """While documents are read; `expected` is how many there are, None where nobody knows before the last."""
        if not self.is_due():
            return
        rate = self._rate("documents", documents)
        done = f"{documents:,} read" if expected is None else f"{documents:,} of {expected:,}"
        told = f"reading documents: {done}, {requests:,} requests"
        if rate:
            told += f", {rate:,.0f} documents/s"
        if rate and expected is not None and expected > documents:
            told += f", ETA {duration((expected - documents) / rate)}"
        self._draw(_plain(told), told)

    def counted(self, what: str, done: int, total: int, unit: str) -> None:
        """While something of a known size is done: `what` is its name, `unit` what is counted (`rows`, `MB`)."""
        # Elsewhere than on a terminal, only work that takes long is shown.
        began = self._begun.setdefault(what, self._clock())
        if not self.is_due() or (not self._screen.is_on and self._clock() - began < PLAIN_SECONDS):
            return
        rate = self._rate(what, done)
        left = duration((total - done) / rate) if rate and total > done else "—"
        told = f"{what}: {done:,} of {total:,} {unit}, {rate:,.0f}/s, ETA {left}"
        self._draw(_plain(told), told)

    def job(self, detail: JobDetail, rate: float) -> None:
        """While a job runs; `rate` is rows a second of late."""
        line = detail.line
        left = line.counts.total - line.done
        eta = duration(left / rate) if rate and left else "—"
        summary = (
            f"{line.job.id}: {line.state} {line.processed:,}/{line.counts.total:,} rows, {rate:,.1f}/s, ETA {eta}, "
            f"{tokens(detail.usage, line.counts.succeeded)}, {money(line.cost)}"
        )
        if told := detail.problem or next((shard.held for shard in detail.held), None):
            summary += f"  ! {told}"
        self._draw(lambda width: job_view(detail, rate, eta, width or 80), summary)

    def note(self, text: str) -> None:
        """A message of work that goes on, which stays; nothing when `quiet`."""
        if not self._quiet:
            self.say(text)

    def step(self, text: str) -> None:
        """What is being done now: on a terminal until the next, elsewhere not at all."""
        if self._screen.is_on:
            self._screen.draw(_plain(text))

    def _rate(self, what: str, done: int) -> float:
        return self._rates.setdefault(what, RateWindow()).add(self._clock(), done)

    def is_due(self) -> bool:
        """Whether something would be drawn now: progress may come many thousand times a second, and take
        counting all rows of a job."""
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
    """A job that runs: its name and state, a bar, its figures, what failed and what it waits for."""
    line = detail.line
    count = f"{line.processed:,}/{line.counts.total:,}"
    lines: list[Line] = []
    name = f"{line.job.id}  "
    room = width - cell_width(name) - len(line.state) - len(count) - 4
    if room < BAR // 4:
        lines += [(StyledText(part, "bold"),) for part in wrap(line.job.id, width)]
        name, room = "", width - len(line.state) - len(count) - 4
    bar = _bar(line.processed, line.counts.total, min(BAR, max(4, room)))
    lines.append(
        (
            StyledText(name, "bold"),
            StyledText(f"{line.state}  ", STATE_STYLE.get(line.state, "")),
            *bar,
            StyledText(f"  {count}"),
        )
    )
    used = tokens(detail.usage, line.counts.succeeded)
    facts = f"{rate:,.1f} rows/s   ETA {eta}   {used}   {money(line.cost)} so far"
    lines += sentence(facts, width)
    if detail.reasons:
        failed = ", ".join(f"{one.rows:,} {one.code}" for one in detail.reasons[:4])
        more = f", and {len(detail.reasons) - 4} more reasons" if len(detail.reasons) > 4 else ""
        lines += sentence(f"failed: {failed}{more}", width, "red")
    if told := detail.problem or next((shard.held for shard in detail.held), None):
        lines += sentence(told, width, "yellow")
    return lines


def _bar(done: int, total: int, width: int) -> Sequence[StyledText]:
    full = width * done // max(1, total)
    return StyledText("━" * full, "green"), StyledText("─" * (width - full), "dim")


@contextmanager
def progress(*, quiet: bool) -> Iterator[LiveProgress]:
    """A progress view for the length of a block."""
    view = LiveProgress(quiet=quiet)
    view.start()
    try:
        yield view
    finally:
        view.stop()
