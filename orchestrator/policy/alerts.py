"""Alerts to people about problems of a running job: one for each problem, with the action taken. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct, field

from orchestrator.core.counts import Counts, number_of
from orchestrator.core.durations import MINUTE, duration, moment_words
from orchestrator.core.errors import OutputFault
from orchestrator.core.events import Event, EventKind
from orchestrator.core.fail_on import Failing
from orchestrator.core.model import CancelCode, Job
from orchestrator.core.probability_words import chance_words
from orchestrator.core.shards import HoldCode, Shard, ShardState
from orchestrator.settings.config import AlertSettings
from orchestrator.settings.stored_spec import expires

PATIENCE = 2 * MINUTE
"""Seconds that a backend may be unreachable before an alert. Most backends recover sooner."""
HELD = 30 * MINUTE
"""Seconds that a batch may wait to be sent, found or answered before an alert.

Shorter waits for quotas and budgets occur every night.
"""
ENOUGH = 20
"""Minimum number of rows with an outcome before orch judges the share of failures."""


class AlertKind(StrEnum):
    """Subject of an alert."""

    DEADLINE = "deadline"  # the deadline will probably be missed
    BUDGET = "budget"  # a budget is past its warning mark, or has stopped the job
    BACKEND = "backend"  # nothing can be sent to a backend, or nothing runs there
    STALL = "stall"  # a batch makes no progress
    QUALITY = "quality"  # too many answers are bad
    OUTPUT = "output"  # the rows are done, but cannot be delivered
    NIGHT = "night"  # a night failed before it had a job
    SETTINGS = "settings"  # the daemon does not run under the current orch.toml
    DAEMON = "engine"  # an error that should be impossible; databases and webhooks keep its old name


class Alert(Struct, frozen=True):
    """A problem of a job and the action taken. Each combination of kind, job and `what` is reported once.

    `what` tells problems of one kind apart, such as `missed` and `risk` for a deadline. `code` names what keeps rows
    from running; it is None for other problems.
    """

    kind: AlertKind
    job: Job
    what: str
    message: str
    action: str
    code: str | None = None

    @property
    def key(self) -> str:
        """Key that records the alert as reported."""
        return f"{self.kind}:{self.job.id}:{self.what}"


class Notice(Struct, frozen=True):
    """A problem that concerns no job. Each combination of kind and `what` is reported once."""

    kind: AlertKind
    what: str
    message: str
    action: str

    @property
    def key(self) -> str:
        """Key that records the notice as reported."""
        return f"{self.kind}::{self.what}"


class Trouble(Struct, frozen=True):
    """A reason that keeps rows from running, and its duration in seconds. Each `code` is reported once."""

    code: str
    text: str
    seconds: float


class MonitoredJob(Struct, frozen=True):
    """The state of a running job. `chance` is P(done by the deadline), None if unknown.

    `failing` says which of the failed rows in `counts` are new. `troubles` are the reasons that keep rows from
    running.
    """

    job: Job
    counts: Counts
    failing: Failing = field(default_factory=Failing)
    shards: Sequence[Shard] = ()
    events: Sequence[Event] = ()
    chance: float | None = None
    troubles: Sequence[Trouble] = ()


def due(watched: MonitoredJob, settings: AlertSettings, now: datetime) -> list[Alert]:
    """Return a job's current alerts, including alerts that were already reported."""
    return [
        *_deadline(watched, settings, now),
        *_events(watched.job, watched.events),
        *_backend(watched),
        *_stall(watched, now),
        *_quality(watched, settings),
        *_cut(watched, settings),
    ]


def at_end(watched: MonitoredJob, settings: AlertSettings, withheld: str | None) -> list[Alert]:
    """Return the alerts of a job that is over. It may have ended between two checks.

    `withheld` is the reason why the output was not delivered, or None.
    """
    job, events = watched.job, watched.events
    found = [*_events(job, events), *_undelivered(job, events), *_quality(watched, settings)]
    found += _cut(watched, settings)
    if withheld is not None:
        action = "the output was not delivered; `orch fetch` still writes the rows"
        found.append(Alert(AlertKind.QUALITY, job, "withheld", f"judged by known answers: {withheld}", action))
    return found


def _undelivered(job: Job, events: Sequence[Event]) -> Iterator[Alert]:
    if job.is_undelivered and job.error_code is not None:
        again = f"deliver them with `orch retry {job.id}`, or write them with `orch fetch {job.id} -o FILE`"
        by_itself = "retried for a day" if OutputFault(job.error_code).may_pass else "correct it"
        message = f"the rows are done and kept, but were not delivered: {job.error_code}: {job.error}"
        what = f"{job.error_code}:{job.finished_at:%Y%m%d%H%M%S}"
        yield Alert(AlertKind.OUTPUT, job, what, message.partition("\n")[0], f"{by_itself}; {again}")
    for event in events:
        if event.kind == EventKind.DELIVERED:
            what = f"{EventKind.DELIVERED}:{event.at:%Y%m%d%H%M%S}"
            yield Alert(AlertKind.OUTPUT, job, what, event.reason, "nothing more to do")


def _deadline(watched: MonitoredJob, settings: AlertSettings, now: datetime) -> Iterator[Alert]:
    job = watched.job
    if job.deadline_at is None or job.cancel_requested_at is not None or not watched.counts.pending:
        return
    at = moment_words(job.deadline_at)
    reroutes = [event.reason for event in watched.events if event.kind == EventKind.RESCUED]
    if job.deadline_at <= now:
        action = "open rows are given up" if expires(job) else "the job finishes late"
        left = f"without an answer: {watched.counts.pending:,} of {number_of(watched.counts.total, 'row')}"
        yield Alert(AlertKind.DEADLINE, job, "missed", f"the deadline of {at} has passed: {left}", action)
    elif watched.chance is not None and watched.chance < settings.chance:
        action = reroutes[-1] if reroutes else "nothing yet: no other route is better; rerouted as soon as one is"
        message = f"the deadline of {at} is at risk: met with {chance_words(watched.chance)}"
        yield Alert(AlertKind.DEADLINE, job, "risk", message, action)


def _events(job: Job, events: Sequence[Event]) -> Iterator[Alert]:
    for event in events:
        if event.kind == EventKind.BUDGET:
            action = "nothing yet: the job continues up to the cap"
            yield Alert(AlertKind.BUDGET, job, event.code or "budget", event.reason, action)
        elif event.kind == EventKind.STOPPED:
            action = "the job was stopped; rows that are done stay"
            kind = AlertKind.BUDGET if event.code == CancelCode.BUDGET else AlertKind.QUALITY
            yield Alert(kind, job, "stopped", event.reason, action)
        elif event.kind == EventKind.SWAPPED:
            action = (
                "none of these answers was accepted; the job continues; `orch quarantine release` asks the rows again"
            )
            yield Alert(AlertKind.QUALITY, job, f"swapped:{event.shard_id}", event.reason, action)
        elif event.kind == EventKind.FAULT:
            action = "retried with growing pauses; engine.log has the details; other jobs are not affected"
            yield Alert(AlertKind.DAEMON, job, event.code or "fault", event.reason, action)


def _backend(watched: MonitoredJob) -> Iterator[Alert]:
    for trouble in watched.troubles:
        if trouble.seconds >= PATIENCE:
            text = trouble.text.partition("\n")[0]
            action = "its rows wait and resume automatically; those that another backend can finish in time go there"
            message = f"{text}, for {duration(trouble.seconds)}"
            yield Alert(AlertKind.BACKEND, watched.job, trouble.code, message, action, trouble.code)


def _stall(watched: MonitoredJob, now: datetime) -> Iterator[Alert]:
    for shard in watched.shards:
        if shard.held is None or shard.rerouted_at is not None or shard.state.is_final:
            continue
        where = f"batch {shard.id} of {number_of(shard.rows, 'row')} at {shard.backend}"
        what = f"{shard.id} {shard.held_code or 'held'}"
        if shard.held_code is HoldCode.SLOW:
            action = "waiting; its rows are rerouted if the deadline requires it"
            message = f"{where} takes longer than usual: {shard.held}"
            yield Alert(AlertKind.STALL, watched.job, what, message, action, shard.held_code)
        elif (since := _held_since(watched, shard)) is not None and (
            seconds := (now - since).total_seconds()
        ) >= HELD:
            waits, action = _WAITS[shard.state]
            message = f"{where} {waits} for {duration(seconds)}: {shard.held}"
            yield Alert(AlertKind.STALL, watched.job, what, message, action, shard.held_code)


_WAITS = {
    ShardState.PENDING: ("has not been sent", "retried until it can be sent"),
    ShardState.SUBMITTING: (
        "was created without a confirmation",
        "searched for at the backend, and sent again if it is not there",
    ),
    ShardState.SUBMITTED: (
        "has kept the job waiting",
        "asked again; its rows are rerouted if the deadline requires it",
    ),
    ShardState.ENDED: ("has ended, and its answers are missing", "waiting for them as long as the deadline allows"),
}


def _held_since(watched: MonitoredJob, shard: Shard) -> datetime | None:
    held = (
        event.at for event in reversed(watched.events) if event.kind == EventKind.HELD and event.shard_id == shard.id
    )
    return next(held, None)


def _quality(watched: MonitoredJob, settings: AlertSettings) -> Iterator[Alert]:
    counts, job = watched.counts, watched.job
    running = [shard for shard in watched.shards if shard.state is ShardState.SUBMITTED and shard.failing is not None]
    done = counts.succeeded + counts.failed + sum(one.provider_completed + one.provider_failed for one in running)
    known = watched.failing.known + watched.failing.acknowledged
    failed = counts.failed - known + _failing(running, "new")
    known += _failing(running, "known")
    if done < ENOUGH or failed <= settings.failed_share * done:
        return
    more = f"; {known:,} more are known from earlier runs" if known else ""
    have = "has" if failed == 1 else "have"
    message = f"{failed:,} of {number_of(done, 'row')} {have} failed ({failed / done:.0%}){more}"
    action = f"the job continues; `orch status {job.id}` says why they failed, `orch cancel` ends it"
    if job.finished_at is not None:
        action = f"the job has ended; `orch status {job.id}` says why they failed, `orch retry` retries them"
    yield Alert(AlertKind.QUALITY, job, "failed", message, action)


def _cut(watched: MonitoredJob, settings: AlertSettings) -> Iterator[Alert]:
    counts, job = watched.counts, watched.job
    if counts.succeeded < ENOUGH or counts.cut <= settings.cut_share * counts.succeeded:
        return
    share = counts.cut / counts.succeeded
    part = f"{counts.cut:,} of {number_of(counts.succeeded, 'answer')}"
    message = f"{part} ended at max_tokens ({share:.0%}) and may be incomplete"
    action = "they were accepted, as their task has no schema; raise max_tokens if they must be complete"
    yield Alert(AlertKind.QUALITY, job, "cut", message, action)


def _failing(running: Sequence[Shard], kind: str) -> int:
    return sum(sum((shard.failing or {}).get(kind, {}).values()) for shard in running)
