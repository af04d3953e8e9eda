"""Main cause of a job's delay: the avoidable delay with the most time, according to the job's events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.durations import MINUTE, duration
from orchestrator.core.events import Event, EventKind
from orchestrator.core.model import Forecast, Job, JobState
from orchestrator.core.sanitize import shortened
from orchestrator.core.shards import Shard
from orchestrator.policy.overdue import seconds_beyond

WORTH_TELLING = 5 * MINUTE
"""Minimum delay, in seconds, that is reported as a cause."""
BEGINS = (
    EventKind.ROUTED, EventKind.SUBMITTED, EventKind.WAITING, EventKind.HELD, EventKind.STOPPED, EventKind.CANCEL,
)  # fmt: skip
GOES_ON = (EventKind.SUBMITTED, EventKind.ENDED, EventKind.COLLECTED, EventKind.SPLIT, EventKind.RESCUED)
MOST_TEXT = 160


class Cause(StrEnum):
    """Cause of a job's delay."""

    NO_DAEMON = "no_engine"  # it was queued without a running daemon; databases and scripts keep its old name
    STOOD_STILL = "stood_still"  # something blocked the whole job
    HELD = "held"  # batches waited for a quota, a limit or a budget
    SLOW_BATCH = "slow_batch"  # a batch took longer than was forecast
    TOO_LITTLE_TIME = "too_little_time"  # none of these: the work itself takes longer


_ADVICE = {
    Cause.NO_DAEMON: "keep `orch up` running (deploy/ has a systemd unit for it)",
    Cause.STOOD_STILL: "fix that cause; allow a second backend, so that rows can go elsewhere meanwhile",
    Cause.HELD: "raise that limit, start earlier, or allow another backend",
    Cause.SLOW_BATCH: "allow a faster backend as well, or start earlier",
    Cause.TOO_LITTLE_TIME: "start earlier or name a later deadline; `orch plan` shows which it can meet",
}


class Delay(Struct, frozen=True):
    """A cause, its seconds, and a description."""

    cause: Cause
    seconds: float
    text: str

    @property
    def advice(self) -> str:
        return _ADVICE[self.cause]


def main_delay(
    job: Job, events: Sequence[Event], shards: Iterable[Shard], forecasts: Iterable[Forecast], ended: datetime
) -> Delay:
    """Return the main cause of a job's delay. `ended` is the job's end, or now."""
    slow = _slow(shards, forecasts, ended)
    found = [*_queued(job, events, ended), *_standstills(events, ended), *_held(events, ended), *slow]
    worth = [delay for delay in found if delay.seconds >= WORTH_TELLING]
    if worth:
        return max(worth, key=lambda delay: delay.seconds)
    had = 0.0 if job.deadline_at is None else (job.deadline_at - job.created_at).total_seconds()
    return Delay(Cause.TOO_LITTLE_TIME, had, f"the job had {duration(had)}, and nothing delayed it for long")


def _queued(job: Job, events: Sequence[Event], ended: datetime) -> Iterator[Delay]:
    still_queued = None if job.finished_at is not None else ended
    begun = next((event.at for event in events if event.kind in BEGINS), still_queued)
    if begun is not None:
        seconds = (begun - (job.built_at or job.created_at)).total_seconds()
        yield Delay(Cause.NO_DAEMON, seconds, f"no daemon ran for the first {duration(seconds)}")


def _standstills(events: Sequence[Event], ended: datetime) -> Iterator[Delay]:
    spent: dict[str, float] = {}
    for place, event in enumerate(events):
        if event.kind == EventKind.WAITING:
            until = next((later.at for later in events[place + 1 :] if later.kind != EventKind.ALERT), ended)
            spent[event.reason] = spent.get(event.reason, 0.0) + (until - event.at).total_seconds()
    for reason, seconds in spent.items():
        text = f"it was stuck for {duration(seconds)}: {shortened(reason, MOST_TEXT)}"
        yield Delay(Cause.STOOD_STILL, seconds, text)


def _held(events: Sequence[Event], ended: datetime) -> Iterator[Delay]:
    waits: dict[str, tuple[float, str]] = {}
    since: dict[str, tuple[datetime, str]] = {}
    for event in events:
        shard = event.shard_id or ""
        if event.kind == EventKind.HELD:
            since.setdefault(shard, (event.at, event.reason))
        elif event.kind in GOES_ON and shard in since:
            at, reason = since.pop(shard)
            waits[shard] = (waits.get(shard, (0.0, ""))[0] + (event.at - at).total_seconds(), reason)
    for shard, (at, reason) in since.items():
        waits[shard] = (waits.get(shard, (0.0, ""))[0] + (ended - at).total_seconds(), reason)
    for seconds, reason in waits.values():
        yield Delay(Cause.HELD, seconds, f"a batch was held for {duration(seconds)}: {shortened(reason, MOST_TEXT)}")


def _slow(shards: Iterable[Shard], forecasts: Iterable[Forecast], ended: datetime) -> Iterator[Delay]:
    foreseen = {one.shard_id: one for one in forecasts if one.kind == "turnaround"}
    for shard in shards:
        known = foreseen.get(shard.id)
        if known is not None and (beyond := seconds_beyond(shard, known, ended)) is not None:
            what = "was cancelled after" if shard.rerouted_at else "took"
            told = f"{duration(known.p50)} forecast, {duration(known.p95)} at most"
            text = f"a batch at {shard.backend} {what} {duration(known.p50 + beyond)} ({told})"
            yield Delay(Cause.SLOW_BATCH, beyond, text)


def standstill(state: JobState, events: Sequence[Event]) -> str | None:
    """Return why an open job does not progress, from its daemon's last event. None if that event is not a wait."""
    is_open = not state.is_final and state is not JobState.WAITING
    return events[-1].reason if is_open and events and events[-1].kind == EventKind.WAITING else None
