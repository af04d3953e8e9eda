"""Formats jobs and plans as lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.core.clock import now
from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration, pace_words
from orchestrator.core.events import Event, EventKind
from orchestrator.core.money import amount, money
from orchestrator.core.probability_words import chance_words
from orchestrator.reports.plans import clock
from orchestrator.reports.text_tables import Cell, Column, Line, StyledText, pairs, sentence, table
from orchestrator.reports.words import (
    STATE_STYLE,
    kept_words,
    marked_words,
    running_words,
    so_far_words,
    tokens,
    unpriced_words,
)

if TYPE_CHECKING:
    from orchestrator.policy.planner import Outlook
    from orchestrator.reports.status import JobDetail, JobLine
    from orchestrator.store.failures import FailureReason
    from orchestrator.store.quality import Quality

EVENTS = 12
"""Number of newest events to show, in addition to all decisive events."""
DECISIVE = frozenset(
    {
        EventKind.CANCEL,
        EventKind.STOPPED,
        EventKind.RESCUED,
        EventKind.FAILED,
        EventKind.RETRY,
        EventKind.REVISED,
        EventKind.SWAPPED,
    }
)


def job_lines(jobs: Sequence[JobLine], width: int | None) -> list[Line]:
    columns = (
        Column("job"),
        Column("state"),
        Column("done", right=True),
        Column("failed", right=True, rank=1),
        Column("cost", right=True, rank=2),
        Column("eta", right=True, rank=4),
        Column("created", rank=5),
        Column("deadline", rank=3),
    )
    rows: list[Sequence[Cell]] = []
    for line in jobs:
        counts = line.counts
        rows.append(
            (
                line.job.id,
                _state(line, " (limited)" if line.job.is_limited else ""),
                f"{line.done:,}/{counts.total:,}",
                _failed(line),
                money(line.cost),
                _eta(line),
                _when(line.job.created_at),
                _when(line.job.deadline_at),
            )
        )
    return table(columns, rows, width)


def _failed(line: JobLine) -> str:
    failed, known = line.failed_so_far + line.counts.expired, line.failing.known + line.failing.acknowledged
    words = [f"{failed:,}"] if failed != known else []
    return ", ".join([*words, *([f"{known:,} known"] if known else [])]) or "—"


def _eta(line: JobLine) -> str:
    return "—" if line.eta_seconds is None else duration(line.eta_seconds)


def _when(at: datetime | None) -> str:
    return "—" if at is None else at.astimezone().strftime("%m-%d %H:%M")


def _state(line: JobLine, note: str = "") -> StyledText:
    return StyledText(line.state.value + note, STATE_STYLE.get(line.state, ""))


def job_detail(detail: JobDetail, width: int | None, *, events: int | None = EVENTS) -> list[Line]:
    """Show a job's counts, shards, failures and the newest `events`. If `events` is None, show all."""
    line = detail.line
    lines = _head(detail, width)
    if detail.problem:
        lines += sentence(f"! {detail.problem}", width, "yellow")
    if line.job.error:
        lines += sentence(f"! {line.job.error}", width, "red")
    for shard in detail.held:
        lines += sentence(f"! shard {shard.number:03d}: {shard.held}", width, "yellow")
    if detail.shards:
        lines += [(), *_shards(detail, width)]
    if detail.reasons:
        columns = (Column("rows", right=True), Column("code"), Column("reason", prose=True))
        rows = [(f"{one.rows:,}", one.code, _with_advice(one)) for one in detail.reasons]
        lines += [(), *table(columns, rows, width)]
    if detail.events and events != 0:
        lines += [(), *_events(detail, events, width)]
    return lines


def _with_advice(reason: FailureReason) -> str:
    """Return a failure reason with one of its documents, and advice if a provider's message came under orch's own
    code.
    """
    from orchestrator.policy.advice import advice_for
    from orchestrator.policy.row_errors import RULES

    is_ours = any(rule.code == reason.code for rule in RULES)
    named = reason.document and f"{reason.document}{', …' if reason.has_others else ''}: "
    return named + (f"{reason.message} → {advice_for(reason.code)}" if is_ours else reason.message)


def _head(detail: JobDetail, width: int | None) -> list[Line]:
    line = detail.line
    counts, job = line.counts, line.job
    told: list[tuple[str, Sequence[Cell] | Cell]] = [("job", (job.id, _state(line)))]
    ended = [(name, getattr(counts, name)) for name in ("succeeded", "failed", "cancelled", "expired", "pending")]
    of_them = ", ".join(f"{number:,} {name}" for name, number in ended if number)
    told.append(("rows", f"{counts.total:,}: {of_them}" if of_them else "0"))
    advice = {"cut": "; raise it if they must be complete"}
    told += [(name, words + advice.get(name, "")) for name, words in marked_words(counts).items()]
    if line.failing.known or line.failing.acknowledged:
        told.append(("failures", str(line.failing)))
    told += [("so far", words) for words in so_far_words(line.finished_in_batches, line.failed_in_batches)]
    if job.limited_to is not None:
        told.append(("limited", f"to {job.limited_to}"))
    if detail.carried:
        failed = detail.carried - detail.carried_answers
        how = f"; {failed:,} of them failed there" if failed else ""
        told.append(("reused", f"{number_of(detail.carried, 'row')} of an earlier run or another job{how}"))
    if used := tokens(detail.usage, detail.answered_itself):
        told.append(("tokens", used))
    about = "≈" if detail.is_estimate else ""
    cost = f"{about}{money(line.cost)}" + (f" of {amount(job.budget)}" if job.budget is not None else "")
    told.append(("cost", "; ".join([cost, *running_words(line.running)])))
    if detail.unpriced:
        told.append(("unpriced", unpriced_words(detail.unpriced)))
    if not line.state.is_final:
        left = "" if line.eta_seconds is None else f", {_eta(line)} to go"
        told.append(("rate", f"{pace_words(line.rate)}{left}" if line.rate else "no rate yet"))
    if job.deadline_at is not None:
        due = line.due(now())
        kept = "" if due is None or due.met is None else f"; {kept_words(due)}"
        told.append(("deadline", job.deadline_at.astimezone().strftime("%a %Y-%m-%d %H:%M %Z") + kept))
    if detail.outlook is not None:
        told.append(("outlook", _outlook(detail.outlook, dated=job.deadline_at is not None)))
    if detail.quality is not None:
        told.append(("quality", _quality(detail.quality)))
    if detail.tags:
        told.append(("tags", ", ".join(f"{key}={value}" for key, value in detail.tags.items())))
    if job.output_path:
        told.append(("results", job.output_path))
    return pairs(told, width)


def _outlook(outlook: Outlook, *, dated: bool) -> str:
    told = [f"{chance_words(outlook.chance)} in time"] if dated else []
    if outlook.waits:
        told = [outlook.reason]
    told.append(f"{money(outlook.expected)} more expected")
    if outlook.reroute is not None:
        told.append(f"batches still running at {clock(outlook.reroute.at)} go to {' and '.join(outlook.reroute.to)}")
    return "; ".join(told)


def _quality(found: Quality) -> StyledText:
    told = f"{found.hits:,} of {number_of(found.fields, 'known field')} right"
    if found.share is not None:
        told = f"{found.share:.1%}: {told}"
    if found.withheld is None:
        return StyledText(told)
    return StyledText(f"{told}; not delivered: {found.withheld}", "red")


def _shards(detail: JobDetail, width: int | None) -> list[Line]:
    columns = (
        Column("shard"),
        Column("state"),
        Column("backend"),
        Column("model", rank=1),
        Column("rows", right=True),
        Column("done", right=True),
        Column("failed", right=True),
        Column("batch", rank=2),
        Column("reason", prose=True),
    )
    rows = [
        (
            f"{shard.number:03d}",
            shard.state.value if shard.provider_status is None else f"{shard.state.value} ({shard.provider_status})",
            shard.backend,
            detail.model_name(shard),
            f"{shard.rows:,}",
            f"{detail.done_in(shard):,}",
            f"{detail.failed_in(shard):,}" if detail.failed_in(shard) else "—",
            shard.batch_id or "—",
            shard.reason,
        )
        for shard in detail.shards
    ]
    return table(columns, rows, width)


def _events(detail: JobDetail, most: int | None, width: int | None) -> list[Line]:
    events = detail.events
    shown = events if most is None else chosen(events, most)
    columns = (Column("when"), Column("what"), Column("reason", prose=True))
    rows = [(f"{event.at.astimezone():%m-%d %H:%M:%S}", event.kind, event.reason) for event in shown]
    lines = table(columns, rows, width)
    if left := len(events) - len(shown):
        told = (
            f"{left:,} of {len(events):,} events are not shown: `orch status {detail.line.job.id} --all` shows them"
        )
        lines += sentence(told, width)
    return lines


def chosen(events: Sequence[Event], most: int) -> list[Event]:
    """Return the newest `most` events, all earlier decisive events, and the routes after a reroute."""
    rerouted = next((place for place, event in enumerate(events) if event.kind == EventKind.RESCUED), len(events))
    return [
        event
        for place, event in enumerate(events)
        if place >= len(events) - most
        or event.kind in DECISIVE
        or (event.kind == EventKind.ROUTED and place > rerouted)
    ]
