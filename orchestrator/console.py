"""Everything that is drawn: tables on stdout, live progress on stderr. Only it and `console_reports` import rich."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.durations import duration
from orchestrator.model import JobState, Shard, Usage
from orchestrator.overview import JobDetail, JobLine
from orchestrator.planner import Cost, Outlook, Plan, Refusal, Route
from orchestrator.reportwords import money as money
from orchestrator.store.checked import Quality

PLAIN_SECONDS = 10.0
PLAIN_WIDTH = 200
STATE_STYLE = {
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.RUNNING: "cyan",
    JobState.QUEUED: "blue",
}


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1; a reader that has enough is no failure of ours


def out() -> Console:
    """Results. Plain and unwrapped where stdout is no terminal."""
    return _plain(width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def err() -> Console:
    """Progress and messages."""
    return _plain(stderr=True)


def _plain(*, stderr: bool = False, width: int | None = None) -> Console:
    """Strings are shown as they are: what a model or a path says is no markup. Styles come as Text or `style=`."""
    return _Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def _eta(line: JobLine) -> str:
    return "—" if line.eta_seconds is None else duration(line.eta_seconds)


def _when(at: datetime | None) -> str:
    return "—" if at is None else at.astimezone().strftime("%m-%d %H:%M")


def _state(state: JobState) -> Text:
    return Text(state.value, style=STATE_STYLE.get(state, ""))


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=name != "reason", overflow="fold"
        )
    return table


def job_table(lines: Sequence[JobLine]) -> Table:
    """One line a job."""
    numbers = ("done", "failed", "cost", "eta")
    table = _table("job", "state", "done", "failed", "cost", "eta", "created", "deadline", right=numbers)
    for line in lines:
        counts = line.counts
        table.add_row(
            line.job.id,
            _state(line.state),
            f"{line.done:,}/{counts.total:,}",
            _failed(line),
            money(line.cost),
            _eta(line),
            _when(line.job.created_at),
            _when(line.job.deadline_at),
        )
    return table


def _failed(line: JobLine) -> str:
    failed, known = line.failed_so_far + line.counts.expired, line.failing.known + line.failing.acknowledged
    return f"{failed:,}" + (f", {known:,} known" if known else "") if failed else "—"


def job_detail(detail: JobDetail, *, events: int = 12) -> RenderableType:
    """One job: counts, shards, reasons, and what happened."""
    line = detail.line
    parts: list[RenderableType] = [_head(detail)]
    if detail.problem:
        parts.append(Text(f"! {detail.problem}", style="yellow"))
    if line.job.error:
        parts.append(Text(f"! {line.job.error}", style="red"))
    parts += [Text(f"! shard {shard.number:03d}: {shard.held}", style="yellow") for shard in detail.held]
    if detail.shards:
        parts += [Text(), _shards(detail.shards)]
    if detail.reasons:
        table = _table("rows", "code", "reason", right=("rows",))
        for one in detail.reasons:
            table.add_row(f"{one.rows:,}", one.code, one.message)
        parts += [Text(), table]
    if detail.events and events:
        table = _table("when", "what", "reason")
        for event in detail.events[-events:]:
            table.add_row(event.at.astimezone().strftime("%H:%M:%S"), event.kind, event.reason)
        parts += [Text(), table]
    return Group(*parts)


def _head(detail: JobDetail) -> Table:
    line = detail.line
    counts = line.counts
    table = Table.grid(padding=(0, 2))
    table.add_row("job", Text.assemble(line.job.id, "  ", _state(line.state)))
    ended = [(name, getattr(counts, name)) for name in ("succeeded", "failed", "cancelled", "expired", "pending")]
    told = ", ".join(f"{number:,} {name}" for name, number in ended if number)
    table.add_row("rows", f"{counts.total:,}: {told}" if told else "0")
    if line.failing.known or line.failing.acknowledged:
        table.add_row("failures", str(line.failing))
    if line.failed_so_far > counts.failed:
        table.add_row("so far", f"{line.failed_so_far - counts.failed:,} more have failed in batches that run")
    if detail.carried:
        table.add_row("reused", f"{detail.carried:,} rows have the answer of an earlier run or another job")
    table.add_row("tokens", tokens(detail.usage))
    table.add_row("cost", money(line.cost) + (f" of ${line.job.budget:f}" if line.job.budget is not None else ""))
    if not line.state.is_final:
        table.add_row("rate", f"{line.rate:,.1f} rows/s, {_eta(line)} to go")
    if line.job.deadline_at is not None:
        table.add_row("deadline", line.job.deadline_at.astimezone().strftime("%Y-%m-%d %H:%M"))
    if detail.outlook is not None:
        table.add_row("outlook", _outlook(detail.outlook, dated=line.job.deadline_at is not None))
    if detail.quality is not None:
        table.add_row("quality", _quality(detail.quality))
    if detail.tags:
        table.add_row("tags", ", ".join(f"{key}={value}" for key, value in detail.tags.items()))
    if line.job.output_path:
        table.add_row("results", line.job.output_path)
    return table


def _outlook(outlook: Outlook, *, dated: bool) -> str:
    told = [f"{_chance(outlook.chance)} in time"] if dated else []
    told.append(f"{money(outlook.expected)} more expected")
    if outlook.rescue is not None:
        told.append(f"what still runs at {_clock(outlook.rescue.at)} goes to {' and '.join(outlook.rescue.to)}")
    return "; ".join(told)


def _quality(found: Quality) -> Text:
    told = f"{found.hits:,} of {found.fields:,} known fields are right"
    if found.share is not None:
        told = f"{found.share:.1%}: {told}"
    if found.withheld is None:
        return Text(told)
    return Text(f"{told}; not delivered: {found.withheld}", style="red")


def tokens(usage: Usage) -> str:
    """Tokens in words."""
    cached = f" ({usage.cached_tokens / usage.input_tokens:.0%} cached)" if usage.cached_tokens else ""
    return f"{usage.input_tokens:,} in{cached}, {usage.output_tokens:,} out"


def _shards(shards: Sequence[Shard]) -> Table:
    table = _table("shard", "state", "backend", "model", "rows", "done", "batch", "reason", right=("rows", "done"))
    for shard in shards:
        table.add_row(
            f"{shard.number:03d}",
            shard.state.value if shard.provider_status is None else f"{shard.state.value} ({shard.provider_status})",
            shard.backend,
            shard.model,
            f"{shard.rows:,}",
            f"{shard.provider_completed + shard.provider_failed:,}",
            shard.batch_id or "—",
            shard.reason,
        )
    return table


def plan_table(plan: Plan, deadline: datetime | None) -> RenderableType:
    """Routes taken and refused, what it all costs, and what would hold where nothing does."""
    chances = [] if deadline is None else [f"P(by {deadline.astimezone():%H:%M})"]
    table = _table("", "route", "rows", "cost (p50–p95)", "done by (p50–p95)", *chances, "reason", right=("rows",))

    def add(mark: str, one: Route | Refusal, rows: str, style: str = "") -> None:
        cost = "—" if one.cost is None else _span(one.cost)
        chance = [] if deadline is None else ["—" if one.chance is None else _chance(one.chance)]
        done = _until(one.done_p50, one.done_p95)
        table.add_row(mark, one.backend, rows, cost, done, *chance, one.reason, style=style)

    for route in plan.routes:
        add("✓", route, f"{route.rows:,}")
    for refused in plan.refused:
        add("✗", refused, "—", "dim")
    parts: list[RenderableType] = [table]
    if plan.rescue is not None and deadline is not None:
        what = f"what still runs at {_clock(plan.rescue.at)} goes to {' and '.join(plan.rescue.to)}"
        parts.append(Text(f"rescue: {what}; needed {_chance(plan.rescue.needed)}"))
    if plan.routes:
        told = f"expected {money(plan.expected)}, at most {money(plan.at_most)}"
        parts.append(Text(told if deadline is None else f"{told}, in time with {_chance(plan.chance)}"))
    if not plan.verdict.holds:
        parts.append(Text(f"! {plan.verdict.reason}", style="red"))
        parts += [Text(f"  would hold: {option} {value}") for option, value in plan.verdict.nearest()]
    return Group(*parts)


def _span(cost: Cost) -> str:
    return money(cost.p50) if cost.p50 == cost.p95 else f"{money(cost.p50)}–{money(cost.p95).lstrip('$')}"


def _until(p50: datetime | None, p95: datetime | None) -> str:
    return "—" if p50 is None and p95 is None else f"{_clock(p50)}–{_clock(p95)}"


def _clock(at: datetime | None) -> str:
    return "later" if at is None else at.astimezone().strftime("%a %H:%M")


def _chance(chance: float) -> str:
    """Never 100 % of what is not certain."""
    return f"{min(chance, 0.999):.1%}" if 0.99 < chance < 1 else f"{chance:.0%}"


class Progress:
    """A live view of a job on a terminal; elsewhere a line now and then, and nothing when `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = err()
        self._quiet = quiet
        self._live: Live | None = None
        self._said_at = float("-inf")
        self._said = ""

    def start(self) -> None:
        """Begin to draw."""
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: RenderableType) -> None:
        """A message that stays; what was drawn before it goes."""
        if self._live is not None:
            self._live.update(Text(), refresh=True)
        self._console.print(text, soft_wrap=True)

    def reading(self, documents: int, requests: int) -> None:
        """While documents are read."""
        self._draw(Text(f"reading documents: {documents:,} read, {requests:,} requests"), "reading documents")

    def job(self, detail: JobDetail, rate: float) -> None:
        """While a job runs; `rate` is rows a second of late."""
        line = detail.line
        left = line.counts.total - line.done
        eta = duration(left / rate) if rate and left else "—"
        summary = (
            f"{line.job.id}: {line.state} {line.done:,}/{line.counts.total:,} rows, {rate:,.1f}/s, ETA {eta}, "
            f"{tokens(detail.usage)}, {money(line.cost)}"
        )
        if told := detail.problem or next((shard.held for shard in detail.held), None):
            summary += f"  ! {told}"
        self._draw(_live_view(detail, rate, eta), summary)

    def _draw(self, view: RenderableType, plain: str) -> None:
        if self._live is not None:
            self._live.update(view, refresh=True)
        elif not self._quiet and plain != self._said and time.monotonic() - self._said_at >= PLAIN_SECONDS:
            self._said_at, self._said = time.monotonic(), plain
            self._console.print(plain, soft_wrap=True)


def _live_view(detail: JobDetail, rate: float, eta: str) -> RenderableType:
    line = detail.line
    grid = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, line.counts.total), completed=line.done, width=40)
    grid.add_row(Text(line.job.id, style="bold"), _state(line.state), bar, f"{line.done:,}/{line.counts.total:,}")
    facts = f"{rate:,.1f} rows/s   ETA {eta}   {tokens(detail.usage)}   {money(line.cost)} so far"
    parts: list[RenderableType] = [grid, Text(facts)]
    if detail.reasons:
        failed = ", ".join(f"{one.rows:,} {one.code}" for one in detail.reasons[:4])
        parts.append(Text(f"failed: {failed}", style="red"))
    if told := detail.problem or next((shard.held for shard in detail.held), None):
        parts.append(Text(told, style="yellow"))
    return Group(*parts)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Progress]:
    """A progress view for the length of a block."""
    view = Progress(quiet=quiet)
    view.start()
    try:
        yield view
    finally:
        view.stop()


@contextmanager
def watching() -> Iterator[Callable[[RenderableType], None]]:
    """A view on stdout that is drawn anew each time the given function is called."""
    with Live(console=out(), auto_refresh=False) as live:
        yield lambda view: live.update(view, refresh=True)
