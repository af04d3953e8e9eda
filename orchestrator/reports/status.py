"""Status of jobs, derived from the store at each call. Nothing is cached."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.core.clock import iso
from orchestrator.core.counts import Counts
from orchestrator.core.fail_on import Failing, FailOn
from orchestrator.core.model import Job, JobState, RequestState, Usage, job_state
from orchestrator.core.money import money
from orchestrator.core.shards import AT_BACKEND, Shard, ShardState
from orchestrator.policy.night_figures import DeadlineResult, deadline_result
from orchestrator.settings.model_lists import alias_words

if TYPE_CHECKING:
    from orchestrator.core.events import Event
    from orchestrator.policy.planner import Outlook
    from orchestrator.store import Store
    from orchestrator.store.failures import FailureReason
    from orchestrator.store.quality import Quality
    from orchestrator.store.records import RefusalHold
    from orchestrator.store.status_reader import StatusReader


class JobLine(Struct, frozen=True):
    """One job in a listing. `done` counts answered and failed rows, including rows in running batches.

    `failing` says which failed rows are new. `failed_so_far` also counts rows that failed in running batches.
    `running` is the cost of running batches so far. It is included in the cost, but not booked yet.
    """

    job: Job
    state: JobState
    counts: Counts
    failing: Failing
    failed_so_far: int
    done: int
    cost: Decimal
    running: Decimal
    rate: float
    eta_seconds: float | None

    def __str__(self) -> str:
        done, total = f"{self.done:,}", f"{self.counts.total:,}"
        return (
            f"{self.job.id}: {self.state}, {done} of {total} done, {self.failed_so_far:,} failed, {money(self.cost)}"
        )

    __repr__ = __str__

    @property
    def finished_in_batches(self) -> int:
        """Pending rows that running batches have finished."""
        return self.done - self.counts.done

    @property
    def left(self) -> int:
        """Pending rows that no batch has finished."""
        return self.counts.pending - self.finished_in_batches

    @property
    def failed_in_batches(self) -> int:
        """Pending rows that have failed in running batches."""
        return self.failed_so_far - self.counts.failed

    @property
    def answered_so_far(self) -> int:
        """Rows with an answer, including those in running batches."""
        return self.done - self.failed_so_far

    def due(self, now: datetime) -> DeadlineResult | None:
        """Return the current deadline result, or None if the job has no deadline."""
        return deadline_result(self.job, self.state, self.counts, now)

    def is_late(self, now: datetime) -> bool:
        """True if the job missed its deadline, or is past it."""
        due = self.due(now)
        return due is not None and due.met is False

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        job = self.job
        return {
            "job": job.id,
            "name": job.name,
            "state": self.state,
            "kind": job.kind,
            "source": job.source,
            "created_at": iso(job.created_at),
            "deadline_at": iso(job.deadline_at),
            "finished_at": iso(job.finished_at),
            "budget_usd": None if job.budget is None else f"{job.budget:f}",
            "output": job.output_path,
            "limited_to": job.limited_to,
            "error": job.error,
            "error_code": job.error_code,
            "requests": {
                "total": self.counts.total,
                "done": self.done,
                "pending": self.counts.pending,
                "finished_in_batches": self.finished_in_batches,
                "succeeded": self.counts.succeeded,
                "failed": self.counts.failed,
                "cancelled": self.counts.cancelled,
                "expired": self.counts.expired,
                "failed_so_far": self.failed_so_far,
                "cut": self.counts.cut,
                "repaired": self.counts.repaired,
                "odd_ends": self.counts.odd_ends,
                "unverifiable": self.counts.unverifiable,
            },
            "failures": {
                "new": self.failing.new,
                "known": self.failing.known,
                "acknowledged": self.failing.acknowledged,
                "known_since": iso(self.failing.since),
            },
            "cost_usd": f"{self.cost:f}",
            "running_usd": f"{self.running:f}",
            "rate_per_second": round(self.rate, 6),
            "eta_seconds": None if self.eta_seconds is None else round(self.eta_seconds, 1),
        }


class JobDetail(Struct, frozen=True):
    """Full status of one job. `model_names` maps each shard to its backend's name of the model.

    `holds` are the refusals that keep rows waiting; empty once the job has ended. `settled` counts rows with an
    outcome in collected shards whose provider reported no counts. `failed_rows` counts the failed rows of each shard.
    `is_estimate` is true if part of the booked cost is an estimate. `unpriced` counts rows whose usage is only partly
    priced. `carried` counts rows with an outcome from an earlier run; `carried_answers` counts how many of these were
    answered.
    """

    line: JobLine
    shards: Sequence[Shard]
    usage: Usage
    carried: int
    reasons: Sequence[FailureReason]
    events: Sequence[Event]
    tags: dict[str, str]
    problem: str | None = None
    outlook: Outlook | None = None
    quality: Quality | None = None
    model_names: Mapping[str, str] = field(default_factory=dict)
    holds: Sequence[RefusalHold] = ()
    settled: Mapping[str, int] = field(default_factory=dict)
    failed_rows: Mapping[str, int] = field(default_factory=dict)
    is_estimate: bool = False
    unpriced: int = 0
    carried_answers: int = 0

    @property
    def answered_itself(self) -> int:
        """Rows that this job sent and that were answered, without rows carried over from earlier runs."""
        return self.line.counts.succeeded - self.carried_answers

    def done_in(self, shard: Shard) -> int:
        """Return the number of rows of a batch that have finished or failed. Rows that moved to a new batch count
        there.
        """
        return self.settled.get(shard.id, shard.done_rows)

    def failed_in(self, shard: Shard) -> int:
        """Return the number of failed rows of a batch by the job's count, including answers that failed their
        check.
        """
        return failing_now(shard) if shard.state is ShardState.SUBMITTED else self.failed_rows.get(shard.id, 0)

    @property
    def done_in_batches(self) -> int:
        """Finished rows that count for the rate. Preflight rows do not count."""
        return self.line.done - sum(shard.done_rows for shard in self.shards if shard.preflight)

    def model_name(self, shard: Shard) -> str:
        """Return the backend's name of a shard's model, or the model's alias if that name is unknown."""
        return self.model_names.get(shard.id) or alias_words(shard.model)

    def is_well(self, fail_on: FailOn = FailOn.UNACKNOWLEDGED) -> bool:
        """True if every row ran, no failure counts against the job, and the answers meet the required quality."""
        counts, withheld = self.line.counts, self.quality is not None and self.quality.withheld is not None
        has_run = counts.done == counts.total
        bad = self.line.failing.counted(fail_on) + (counts.cut if fail_on is FailOn.CUT else 0)
        return self.line.job.error is None and has_run and not withheld and not bad

    @property
    def held(self) -> list[Shard]:
        """Shards that wait for something, or take unusually long."""
        return [shard for shard in self.shards if shard.held is not None and not shard.state.is_final]

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return {
            **self.line.to_json(),
            "carried": self.carried,
            "tokens": {
                "input": self.usage.input_tokens,
                "cached": self.usage.cached_tokens,
                "output": self.usage.output_tokens,
            },
            "cost_estimated": self.is_estimate,
            "unpriced_rows": self.unpriced,
            "problem": self.problem,
            "holds": [hold.to_json() for hold in self.holds],
            "outlook": None if self.outlook is None else outlook_json(self.outlook),
            "quality": None if self.quality is None else _quality_json(self.quality),
            "tags": self.tags,
            "reasons": [_reason_json(one) for one in self.reasons],
            "shards": [
                {
                    **_shard_json(shard),
                    "done": self.done_in(shard),
                    "done_failed": self.failed_in(shard),
                    "model_name": self.model_name(shard),
                }
                for shard in self.shards
            ],
            "events": [
                {
                    "at": iso(event.at),
                    "kind": event.kind,
                    "code": event.code,
                    "reason": event.reason,
                    "shard": event.shard_id,
                }
                for event in self.events
            ],
        }


def _reason_json(reason: FailureReason) -> dict[str, Any]:
    from orchestrator.policy.advice import advice_for

    told = {"code": reason.code, "message": reason.message, "rows": reason.rows, "new": reason.new}
    return {**told, "document": reason.document or None, "advice": advice_for(reason.code)}


def outlook_json(outlook: Outlook) -> dict[str, Any]:
    """Return the stable form of an outlook, documented in docs/reference/json.md."""
    reroute = outlook.reroute
    return {
        "chance": round(outlook.chance, 4),
        "expected_usd": f"{outlook.expected:f}",
        "reroute": None
        if reroute is None
        else {"at": iso(reroute.at), "to": list(reroute.to), "needed": round(reroute.needed, 4)},
        "reason": outlook.reason,
    }


def _quality_json(quality: Quality) -> dict[str, Any]:
    return {
        "share": None if quality.share is None else round(quality.share, 4),
        "right": quality.hits,
        "fields": quality.fields,
        "rows": quality.rows,
        "absent": quality.absent,
        "withheld": quality.withheld,
    }


def _shard_json(shard: Shard) -> dict[str, Any]:
    return {
        "shard": shard.id,
        "state": shard.state,
        "backend": shard.backend,
        "endpoint": shard.endpoint,
        "model": shard.model,
        "batch_id": shard.batch_id,
        "batch_status": shard.provider_status,
        "rows": shard.rows,
        "completed": shard.provider_completed,
        "failed": shard.provider_failed,
        "reason": shard.reason,
        "held": None if shard.state.is_final else shard.held,
        "held_code": None if shard.state.is_final else shard.held_code,
        "preflight": shard.preflight,
        "account": shard.account,
        "prompt_tokens_estimated": shard.tokens,
        "submitted_at": iso(shard.submitted_at),
        "ended_at": iso(shard.ended_at),
    }


RunningCost = Callable[[Shard], Decimal]


def lines(
    store: Store | StatusReader, jobs: Sequence[Job], now: datetime, running_cost: RunningCost
) -> list[JobLine]:
    """Return a line for each job, in the given order. `running_cost` returns the cost of a running batch so far."""
    ids = [job.id for job in jobs]
    counts, submitted, failing = store.jobs.counts(ids), store.jobs.submitted(ids), store.failures.of_jobs(ids)
    found = []
    for job in jobs:
        state = job_state(job, counts[job.id], submitted=job.id in submitted)
        shards = [] if state.is_final else store.shards.of_job(job.id)
        found.append(
            _line(
                job, state, counts[job.id], failing[job.id], shards, store.ledger.spent(job.id),
                running_sum(shards, running_cost), now,
            )
        )  # fmt: skip
    return found


def _line(
    job: Job,
    state: JobState,
    counts: Counts,
    failing: Failing,
    shards: Sequence[Shard],
    paid: Decimal,
    unbooked: Decimal,
    now: datetime,
) -> JobLine:
    running = [shard for shard in shards if shard.state in (ShardState.SUBMITTED, ShardState.ENDED)]
    ahead = sum(shard.done_rows for shard in running)
    finished = min(counts.pending, sum(0 if _is_unclear(shard) else shard.done_rows for shard in running))
    rate = 0.0
    # A preflight row is sent before its batch, so its times say nothing about batches.
    sent = [shard for shard in running if not shard.preflight]
    started = [shard.submitted_at for shard in sent if shard.submitted_at is not None]
    if started and (done := sum(shard.done_rows for shard in sent)):
        rate = done / max(0.001, (now - min(started)).total_seconds())
    left = counts.pending - min(counts.pending, ahead)
    so_far = counts.failed + sum(failing_now(shard) for shard in running if shard.state is ShardState.SUBMITTED)
    eta = left / rate if rate and left else None
    failing = replace(failing, new=counts.failed - failing.known - failing.acknowledged)
    return JobLine(job, state, counts, failing, so_far, counts.done + finished, paid + unbooked, unbooked, rate, eta)


def _is_unclear(shard: Shard) -> bool:
    """True if a batch has only failures whose reasons are unread, so that all of its rows may be sent again."""
    return shard.failing is None and not shard.provider_completed


def _running_reasons(shards: Sequence[Shard]) -> list[FailureReason]:
    from orchestrator.store.failures import FailureReason

    codes: Counter[str] = Counter()
    new: Counter[str] = Counter()
    for shard in (one for one in shards if one.state is ShardState.SUBMITTED):
        for kind, found in (shard.failing or {}).items():
            codes.update(found)
            new.update(found if kind == "new" else {})
    told = "so far, in batches that are still running"
    return [FailureReason(code, told, rows, new[code], None) for code, rows in codes.most_common()]


def failing_now(shard: Shard) -> int:
    """Return the number of rows of a running batch that are known to have failed."""
    if shard.failing is None:
        return 0 if _is_unclear(shard) else shard.provider_failed
    return sum(sum(codes.values()) for codes in shard.failing.values())


def running_sum(shards: Sequence[Shard], running_cost: RunningCost) -> Decimal:
    """Return the unbooked cost of running batches, in dollars."""
    running = [shard for shard in shards if shard.state in AT_BACKEND and shard.provider_seconds]
    return sum((running_cost(shard) for shard in running), Decimal(0))


def _describe(job: Job, holds: Sequence[RefusalHold]) -> str | None:
    if not holds:
        return None
    from orchestrator.settings.stored_spec import refused_rows

    told = [f"{hold.backend} refuses {refused_rows(job, hold.model, hold.task)}: {hold.message}" for hold in holds]
    return "; ".join(told)


def detail(store: Store, job: Job, now: datetime, running_cost: RunningCost, problem: str | None = None) -> JobDetail:
    """Return the full status of one job, including tokens and cost of running batches."""
    counts = store.jobs.counts([job.id])[job.id]
    shards = store.shards.of_job(job.id)
    submitted = job.id in store.jobs.submitted([job.id])
    state = job_state(job, counts, submitted=submitted)
    failing = store.failures.of_jobs([job.id])[job.id]
    paid, unbooked = store.ledger.spent(job.id), running_sum(shards, running_cost)
    line = _line(job, state, counts, failing, shards, paid, unbooked, now)
    carried = store.rows.carried(job.id)
    counted = [one for one in shards if one.state in AT_BACKEND and one.provider_input_tokens]
    booked = store.ledger.booked(job.id, [shard.id for shard in counted])
    holds = store.holds.of(job.id) if state in (JobState.QUEUED, JobState.RUNNING) else ()
    usage = Usage(
        booked.usage.input_tokens + sum(shard.provider_input_tokens for shard in counted),
        booked.usage.cached_tokens,
        booked.usage.output_tokens + sum(shard.provider_output_tokens for shard in counted),
    )
    return JobDetail(
        line,
        shards,
        usage,
        carried.total(),
        [*store.failures.reasons(job.id), *_running_reasons(shards)],
        store.jobs.events(job.id),
        store.jobs.tags(job.id),
        problem or _describe(job, holds),
        quality=store.quality.of(job.id),
        holds=holds,
        settled=store.rows.settled([one.id for one in shards if one.state is ShardState.COLLECTED]),
        failed_rows=store.rows.failed_by_shard(job.id),
        is_estimate=booked.estimated,
        unpriced=booked.unpriced,
        carried_answers=carried[RequestState.SUCCEEDED],
    )


class RateWindow:
    """Rate in rows per second over the last `seconds`, so that the ETA follows the current speed."""

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, int]] = deque()

    def add(self, at: float, done: int) -> float:
        """Add a sample; `at` is a time in seconds. Return the rate, 0 for the first sample.

        If `done` falls because rows are sent again, the window starts over. The rate is never negative.
        """
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((at, done))
        while len(self._samples) > 2 and at - self._samples[0][0] > self._seconds:
            self._samples.popleft()
        first_at, first_done = self._samples[0]
        return (done - first_done) / (at - first_at) if at > first_at else 0.0
