"""What the planner is told of a job: its open rows, what each backend asks and how long it takes, and the terms.

All is read from the store, orch.toml and the profiles: prices, own history, quotas, what other jobs have there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property

from orchestrator import forecast, planner, quota, tokens
from orchestrator.backends.open import limits_of, profile_for
from orchestrator.backends.profiles import Profile, window_for
from orchestrator.config import Backend, Config, LocalBackend, SyncBackend
from orchestrator.errors import UsageError
from orchestrator.forecast import Lengths, Pace, Seen
from orchestrator.jobspec import JobSpec
from orchestrator.model import Job, JobId, JobKind, Shard, ShardState, Usage
from orchestrator.pipeline.lanes import Prices
from orchestrator.pipeline.prices import prices_of
from orchestrator.pipeline.routes import models_of, objections, plan_for
from orchestrator.planner import BatchOption, Cost, Decision, Open, Option, PacedOption, Running, Terms
from orchestrator.requests import resolve_model
from orchestrator.store import Store
from orchestrator.store.rows import Work
from orchestrator.wire import BatchStatus

RUNS = 10
"""So many earlier runs of a job file say how long its answers are."""
ASSUMED_ROWS = 1.0
"""Rows a second of one upstream of which nothing is known."""
ASSUMED_SYNC_ROWS = 5.0
ASSUMED_CANCEL = 600.0
UNBOUNDED_OUTPUT = 4096
"""What an answer without a bound is taken to have at most; a budget does not allow such rows."""
INPUT_MARGIN = 1.15
DAY = 86_400
NO_DEADLINE = timedelta(days=7)
MEASURED_AFTER = 30.0
P95 = 1.645
_AT_BACKEND = (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED)
_BY_ITSELF = (BatchStatus.COMPLETED, BatchStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Shape:
    """What rows of a job are on the whole: prompt tokens and answer tokens of one, and where the latter are from."""

    rows: int
    model: str
    input_tokens: float
    output: Lengths


class Planning:
    """The planner's view of a job at this moment. Reads only."""

    def __init__(self, store: Store, config: Config, job: Job, now: datetime) -> None:
        self._store = store
        self._config = config
        self._job = job
        self._now = now

    @cached_property
    def work(self) -> list[Work]:
        """The job's open rows, by what decides their cost and place."""
        return self._store.rows.open_work(self._job.id)

    @cached_property
    def shards(self) -> list[Shard]:
        """The job's shards."""
        return self._store.shards.of_job(self._job.id)

    @cached_property
    def terms(self) -> Terms:
        """What the job asks for; the budget is what of it is neither spent nor in flight at hosted backends."""
        job, left = self._job, None
        if job.budget is not None:
            left = max(Decimal(0), job.budget - self._store.ledger.spent(job.id))
        spec = self._spec
        terms = Terms(deadline=job.deadline_at or self._now + NO_DEADLINE, budget=left)
        if spec is None:
            return terms
        return replace(
            terms,
            target=spec.target,
            late_cost=spec.late_cost,
            local_only=spec.allow.location == "local",
        )

    @cached_property
    def _spec(self) -> JobSpec | None:
        return JobSpec.model_validate(self._job.spec) if self._job.kind is JobKind.DOCUMENTS else None

    @cached_property
    def shapes(self) -> list[Shape]:
        """The open rows by model."""
        found: dict[str, list[Work]] = {}
        for work in self.work:
            found.setdefault(work.model, []).append(work)
        return [self._shape(model, parts) for model, parts in found.items()]

    @cached_property
    def _runs(self) -> list[JobId]:
        return [run.id for run in self._store.jobs.of_series(self._job.series)[:RUNS]]

    def _shape(self, model: str, parts: Sequence[Work]) -> Shape:
        rows = sum(part.rows for part in parts)
        fed = sum(tokens.estimate(part.bytes) for part in parts) / rows
        lengths = [(part.rows, self._lengths(part)) for part in parts]
        mean = sum(many * one.mean for many, one in lengths) / rows
        p50 = round(sum(many * one.p50 for many, one in lengths) / rows)
        p95 = math.ceil(sum(many * one.p95 for many, one in lengths) / rows)
        return Shape(rows, model, fed, Lengths(mean, p50, p95, lengths[0][1].source))

    def _lengths(self, part: Work) -> Lengths:
        most = part.max_output // part.rows if part.max_output is not None else UNBOUNDED_OUTPUT
        seen = self._store.rows.output_lengths(self._runs, part.task, part.prompt_version)
        return forecast.output_lengths(seen, most)

    @cached_property
    def options(self) -> list[Option]:
        """Every backend of orch.toml as the planner sees it, with what speaks against it for this job."""
        against = objections(self._config, self._job)
        return [self._option(name, backend, against.get(name)) for name, backend in self._config.backends.items()]

    def _option(self, name: str, backend: Backend, objection: str | None) -> Option:
        if isinstance(backend, LocalBackend | SyncBackend):
            return self._paced(name, backend, objection)
        profile = profile_for(backend)
        try:
            cost = self._token_cost(name, prices_of(backend, self._config, lambda: self._now))
        except UsageError as error:
            cost, objection = Cost(Decimal(0), Decimal(0)), objection or error.message
        sent = self._store.shards.sent_to(name)
        return BatchOption(
            backend=name,
            location=backend.location,
            cost=cost,
            turnaround=forecast.turnaround(_seen(sent, self._now), rows=max(1, self._rows), at=self._now),
            cancel_seconds=forecast.longest(_cancelled(sent), assumed=ASSUMED_CANCEL),
            room=self._room(name, backend, profile),
            window=float(window_for(profile, DAY).seconds),
            objection=objection,
        )

    @property
    def _rows(self) -> int:
        return sum(shape.rows for shape in self.shapes)

    def _token_cost(self, name: str, prices: Prices) -> Cost:
        """What a row costs there, over the models of the job."""
        p50 = p95 = Decimal(0)
        models = models_of(self._config, self._job)
        for shape in self.shapes:
            model = resolve_model(shape.model, name, models) or shape.model
            for output, fed, is_high in (
                (round(shape.output.mean), shape.input_tokens, False),
                (shape.output.p95, shape.input_tokens * INPUT_MARGIN, True),
            ):
                # Of a thousand rows, so that no fraction of a token is lost.
                usage = Usage(input_tokens=round(fed), output_tokens=output)
                price = prices.at_most(model, usage)
                assert price is not None, "paid by the token"
                p50, p95 = (p50, p95 + shape.rows * price.cost) if is_high else (p50 + shape.rows * price.cost, p95)
        rows = max(1, self._rows)
        return Cost(p50 / rows, max(p50, p95) / rows)

    def _room(self, name: str, backend: Backend, profile: Profile) -> int | None:
        """How many rows may be enqueued there now, by the tightest of the models."""
        rooms = []
        for shape in self.shapes:
            known = self._store.limits.of(name, shape.model)
            limit = quota.effective(limits_of(backend, profile).enqueued(shape.model), known.enqueued_tokens)
            if limit is not None:
                there = sum(one.tokens for one in self._store.shards.at_backend(name) if one.model == shape.model)
                rooms.append(int(max(0, limit - there) / max(1.0, shape.input_tokens)))
        return min(rooms, default=None)

    def _paced(self, name: str, backend: LocalBackend | SyncBackend, objection: str | None) -> PacedOption:
        sent = self._store.shards.sent_to(name)
        others = [one for one in sent if one.job_id != self._job.id and one.state in _AT_BACKEND]
        ahead = sum(max(0, one.rows - one.provider_completed - one.provider_failed) for one in others)
        pace = forecast.pace(_rates(sent), assumed=self._assumed(backend), ahead=float(ahead))
        running = [one for one in self.shards if one.backend == name and one.state is ShardState.SUBMITTED]
        done = sum(one.provider_completed + one.provider_failed for one in running)
        began = min((one.submitted_at for one in running if one.submitted_at is not None), default=self._now)
        seconds = (self._now - began).total_seconds()
        if seconds >= MEASURED_AFTER:
            pace = pace.now(done / seconds, seconds)
        prices = prices_of(backend, self._config, lambda: self._now)
        try:
            cost = (
                self._time_cost(prices, pace, len(backend.upstreams))
                if isinstance(backend, LocalBackend)
                else self._token_cost(name, prices)
            )
        except UsageError as error:
            cost, objection = Cost(Decimal(0), Decimal(0)), objection or error.message
        return PacedOption(name, backend.location, cost, pace, objection)

    def _assumed(self, backend: LocalBackend | SyncBackend) -> float:
        if isinstance(backend, LocalBackend):
            return ASSUMED_ROWS * len(backend.upstreams)
        rates = [] if backend.requests_per_minute is None else [backend.requests_per_minute / 60]
        if backend.tokens_per_minute is not None and self._rows:
            a_row = sum(one.rows * (one.input_tokens + one.output.mean) for one in self.shapes) / self._rows
            rates.append(backend.tokens_per_minute / 60 / max(1.0, a_row))
        return min(rates, default=ASSUMED_SYNC_ROWS)

    @staticmethod
    def _time_cost(prices: Prices, pace: Pace, upstreams: int) -> Cost:
        if pace.rate <= 0:
            return Cost(Decimal(0), Decimal(0))  # nothing runs there, so nothing is planned there
        seconds = upstreams / pace.rate
        return Cost(prices.of_time(seconds).cost, prices.of_time(seconds * math.exp(P95 * pace.spread)).cost)

    @cached_property
    def lying(self) -> Open:
        """Where the job's open rows are; those that keep away from a backend are not among them."""
        by_shard: dict[str, int] = {}
        waiting = 0
        for work in self.work:
            if work.shard_id is not None:
                by_shard[work.shard_id] = by_shard.get(work.shard_id, 0) + work.rows
            elif work.avoid is None:
                waiting += work.rows
        running: list[Running] = []
        paced: dict[str, int] = {}
        coming, coming_at = 0, None
        for shard in self.shards:
            rows = by_shard.get(shard.id, 0)
            if not rows:
                continue
            if isinstance(self._config.backends.get(shard.backend), LocalBackend | SyncBackend):
                paced[shard.backend] = paced.get(shard.backend, 0) + rows - _finished(shard, rows)
            elif shard.pulled_at is not None:
                coming += rows - _finished(shard, rows)
                back = shard.pulled_at + timedelta(seconds=ASSUMED_CANCEL)
                coming_at = back if coming_at is None else max(coming_at, back)
            else:
                sent_at = shard.submitted_at or self._now
                running.append(Running(shard.id, shard.backend, rows - _finished(shard, rows), sent_at))
        held = tuple((name, rows) for name, rows in paced.items() if rows)
        return Open(waiting, 0, coming, coming_at, tuple(one for one in running if one.rows), held)

    @property
    def avoided(self) -> list[str]:
        """The backends that rows which wait keep away from."""
        return sorted({work.avoid for work in self.work if work.shard_id is None and work.avoid is not None})

    def plan_kept(self, avoid: str) -> planner.Plan:
        """The plan of the rows that keep away from a backend."""
        rows = sum(work.rows for work in self.work if work.shard_id is None and work.avoid == avoid)
        refused = "it has refused these rows, or they were taken back from it"
        options = [
            replace(option, objection=option.objection or refused) if option.backend == avoid else option
            for option in self.options
        ]
        return planner.plan(rows, options, self._binding, self._now)

    def has_other_than(self, backend: str) -> bool:
        """Whether rows that a backend gives up have somewhere to go."""
        return any(option.backend != backend and option.objection is None for option in self.options)

    def why_not(self) -> str | None:
        """What speaks against each backend, where something does against all of them."""
        if any(option.objection is None for option in self.options):
            return None
        return (
            "; ".join(f"{option.backend}: {option.objection}" for option in self.options)
            or "no backend is configured"
        )

    def reason_for(self, backend: str, decision: Decision) -> str:
        """Why rows go to a backend, for people."""
        usable = [option.backend for option in self.options if option.objection is None]
        if usable == [backend] and (route := plan_for(self._config, self._job).route) is not None:
            return route.reason
        return decision.reason if self._job.deadline_at is not None else f"the cheapest of {', '.join(usable)}"

    @property
    def _binding(self) -> Terms:
        """The terms that rows are sent by: where all is paid by the hour, the budget stops the job while it runs."""
        usable = [option.backend for option in self.options if option.objection is None]
        by_hour = all(isinstance(self._config.backends[name], LocalBackend) for name in usable)
        return replace(self.terms, budget=None) if by_hour else self.terms

    def plan(self) -> planner.Plan:
        """The plan of all open rows as if none had been sent: what a submit prints."""
        return planner.plan(self._rows, self.options, self.terms, self._now)

    @property
    def is_assumed(self) -> bool:
        """Whether a backend may take rows of which nobody knows yet how fast it is."""
        return any(
            isinstance(option, PacedOption) and option.objection is None and option.pace.source == "assumed"
            for option in self.options
        )

    def decide(self) -> planner.Decision:
        """What to do with the job now."""
        return planner.replan(self.lying, self.options, self._binding, self._now)


def _finished(shard: Shard, rows: int) -> int:
    """How many of a shard's open rows its backend has done already, as far as it says."""
    return min(rows, shard.provider_completed + shard.provider_failed)


def _seen(sent: Sequence[Shard], now: datetime) -> list[Seen]:
    found = []
    for shard in sent:
        assert shard.submitted_at is not None, "it was sent"
        by_itself = shard.ended_at is not None and shard.provider_status in _BY_ITSELF and shard.pulled_at is None
        seconds = ((shard.ended_at or now) - shard.submitted_at).total_seconds()
        if shard.provider_status != BatchStatus.FAILED:
            found.append(Seen(shard.submitted_at, max(1.0, seconds), by_itself, shard.rows))
    return found


def _cancelled(sent: Sequence[Shard]) -> list[float]:
    """Seconds from the decision to take batches back to their end."""
    return [
        (shard.ended_at - shard.pulled_at).total_seconds()
        for shard in sent
        if shard.pulled_at is not None and shard.ended_at is not None
    ]


def _rates(sent: Sequence[Shard]) -> list[float]:
    """Rows a second of batches that came to their end, where they took long enough to say so."""
    rates = []
    for shard in sent:
        if shard.submitted_at is None or shard.ended_at is None or shard.pulled_at is not None:
            continue
        seconds = (shard.ended_at - shard.submitted_at).total_seconds()
        done = shard.provider_completed + shard.provider_failed
        if seconds > 1.0 and done:
            rates.append(done / seconds)
    return rates
