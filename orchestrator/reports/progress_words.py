"""The progress of a job in one line."""

from __future__ import annotations

from orchestrator.core.counts import number_of
from orchestrator.core.durations import duration
from orchestrator.core.money import money
from orchestrator.reports.status import JobDetail
from orchestrator.reports.words import tokens


def eta_words(detail: JobDetail, rate: float) -> str:
    """Describe the time left at a rate in rows per second."""
    left = detail.line.left
    return duration(left / rate) if rate and left else "—"


def progress_words(detail: JobDetail, rate: float) -> str:
    """Describe a job's state, rows, rate, tokens and cost, and the reason why it waits."""
    line = detail.line
    facts = (
        f"{line.job.id}: {line.state} {line.done:,}/{number_of(line.counts.total, 'row')}",
        f"{rate:,.1f}/s",
        f"ETA {eta_words(detail, rate)}",
        tokens(detail.usage, detail.answered_itself),
        money(line.cost),
    )
    summary = ", ".join(filter(None, facts))
    told = detail.problem or next((shard.held for shard in detail.held), None)
    return f"{summary}  ! {told}" if told else summary
