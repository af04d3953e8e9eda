"""What each backend would ask for a job's rows, and how long it would take: the options of the planner.

All is read from the store, orch.toml and the profiles: prices, own history, quotas, what other jobs have there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property

from orchestrator import forecast, quota
from orchestrator.backends.open import limits_of, profile_for
from orchestrator.backends.profiles import Profile, window_for
from orchestrator.config import Backend, Config, LocalBackend, SyncBackend
from orchestrator.errors import UsageError
from orchestrator.forecast import Lengths, Pace, Seen
from orchestrator.home import Home
from orchestrator.model import Job, JobId, Shard, ShardState, Usage
from orchestrator.pipeline.density import density
from orchestrator.pipeline.lanes import Prices
from orchestrator.pipeline.prices import prices_of
from orchestrator.pipeline.routes import models_of, objections
from orchestrator.planner import BatchOption, Cost, Option, PacedOption
from orchestrator.requests import resolve_model
from orchestrator.store import Store
from orchestrator.store.rows import Work
from orchestrator.wire import BatchStatus

RUNS = 10
"""So many earlier runs of a job file say how long its answers are."""
ASSUMED_ROWS = 1.0
"""Rows a second of one upstream of which nothing is known."""
ASSUMED_SYNC_ROWS = 5.0
A_GOOD_PART = 0.1
ASSUMED_CANCEL = 600.0
UNBOUNDED_OUTPUT = 4096
"""What an answer without a bound is taken to have at most; a budget does not allow such rows."""
INPUT_MARGIN = 1.15
"""Prompts of a job on the whole are no longer than estimated by this (95 %)."""
DAY = 86_400
MEASURED_AFTER = 30.0
P95 = 1.645
FREE = Cost(Decimal(0), Decimal(0))
_AT_BACKEND = (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED)
_OVER = frozenset(status for status in BatchStatus if status.is_final)
_BY_ITSELF = (BatchStatus.COMPLETED, BatchStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows that are alike on the whole: the estimated prompt tokens of one, and how long its answer will be."""

    rows: int
    model: str
    input_tokens: float
    output: Lengths


class Prospects:
    """The options of a job's open rows at this moment. Reads only."""

    def __init__(self, store: Store, config: Config, job: Job, work: Sequence[Work], now: datetime) -> None:
        self._store = store
        self._config = config
        self._job = job
        self._work = work
        self._now = now
        self._sent: dict[str, list[Shard]] = {}
        self._history: dict[tuple[str, str], tuple[dict[int, int], float]] = {}

    @cached_property
    def rows(self) -> int:
        """The open rows."""
        return sum(part.rows for part in self._work)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The open rows by model."""
        found: dict[str, list[Work]] = {}
        for work in self._work:
            found.setdefault(work.model, []).append(work)
        return [self._shape(model, parts) for model, parts in found.items()]

    def _shape(self, model: str, parts: Sequence[Work]) -> Shape:
        rows = sum(part.rows for part in parts)
        fed = sum(part.bytes * self._density(part) for part in parts) / rows
        lengths = [(part.rows, self.lengths(part)) for part in parts]
        mean = sum(many * one.mean for many, one in lengths) / rows
        p50 = round(sum(many * one.p50 for many, one in lengths) / rows)
        p95 = math.ceil(sum(many * one.p95 for many, one in lengths) / rows)
        return Shape(rows, model, fed, Lengths(mean, p50, p95, lengths[0][1].source))

    @cached_property
    def _runs(self) -> list[JobId]:
        return [run.id for run in self._store.jobs.of_series(self._job.series)[:RUNS]]

    def lengths(self, part: Work) -> Lengths:
        """How long the answers to rows of one task will be, by what earlier runs of the job file got."""
        most = part.max_output // part.rows if part.max_output is not None else UNBOUNDED_OUTPUT
        return forecast.output_lengths(self._known(part.task, part.prompt_version)[0], most)

    def _density(self, part: Work) -> float:
        return self._known(part.task, part.prompt_version)[1]

    def _known(self, task: str, prompt_version: str) -> tuple[dict[int, int], float]:
        """The lengths of earlier answers to a task, and the prompt tokens a byte of its lines."""
        key = (task, prompt_version)
        if key not in self._history:
            seen = self._store.rows.output_lengths(self._runs, *key)
            home = Home(self._config.home)
            self._history[key] = seen, density(self._store, home, self._job, self._runs, *key)
        return self._history[key]

    @cached_property
    def options(self) -> list[Option]:
        """Every backend of orch.toml as the planner sees it, with what speaks against it for this job."""
        against = objections(self._config, self._job)
        return [self._option(name, backend, against.get(name)) for name, backend in self._config.backends.items()]

    def _option(self, name: str, backend: Backend, objection: str | None) -> Option:
        if isinstance(backend, LocalBackend | SyncBackend):
            return self._paced(name, backend, objection)
        profile, sent = profile_for(backend), self._sent_to(name)
        cost, unpriced = self._token_cost(name, backend)
        return BatchOption(
            backend=name,
            location=backend.location,
            cost=cost,
            turnaround=forecast.turnaround(_seen(sent, self._now), rows=max(1, self.rows), at=self._now),
            cancel_seconds=forecast.longest(_cancelled(sent), assumed=ASSUMED_CANCEL),
            room=self._room(name, backend, profile),
            window=float(window_for(profile, DAY).seconds),
            objection=objection or unpriced,
        )

    def _sent_to(self, name: str) -> list[Shard]:
        if name not in self._sent:
            self._sent[name] = self._store.shards.sent_to(name)
        return self._sent[name]

    def _token_cost(self, name: str, backend: Backend) -> tuple[Cost, str | None]:
        """What a row costs there over the models of the job, or why nobody knows."""
        prices = prices_of(backend, self._config, lambda: self._now)
        models, p50, p95 = models_of(self._config, self._job), Decimal(0), Decimal(0)
        try:
            for shape in self.shapes:
                model = resolve_model(shape.model, name, models)
                if model is None and shape.model in models:
                    continue  # a model of a list that this backend has not: its rows keep away from it
                model = model or shape.model
                usual = Usage(input_tokens=round(shape.input_tokens), output_tokens=round(shape.output.mean))
                high = Usage(
                    input_tokens=math.ceil(shape.input_tokens * INPUT_MARGIN), output_tokens=shape.output.p95
                )
                p50 += shape.rows * _price(prices, model, usual)
                p95 += shape.rows * _price(prices, model, high)
        except UsageError as error:
            return FREE, error.message
        rows = max(1, self.rows)
        return Cost(p50 / rows, max(p50, p95) / rows), None

    def _room(self, name: str, backend: Backend, profile: Profile) -> int | None:
        """How many rows may be enqueued there beside those of other jobs, by the tightest of the models."""
        rooms = []
        for shape in self.shapes:
            known = self._store.limits.of(name, shape.model)
            limit = quota.effective(limits_of(backend, profile).enqueued(shape.model), known.enqueued_tokens)
            if limit is not None:
                others = (
                    one.tokens
                    for one in self._store.shards.at_backend(name)
                    if one.model == shape.model and one.job_id != self._job.id
                )
                rooms.append(int(max(0, limit - sum(others)) / max(1.0, shape.input_tokens)))
        return min(rooms, default=None)

    def _paced(self, name: str, backend: LocalBackend | SyncBackend, objection: str | None) -> PacedOption:
        sent = self._sent_to(name)
        there = [one for one in sent if one.state in _AT_BACKEND]
        ahead = sum(unfinished(one, one.rows) for one in there if one.job_id != self._job.id)
        ended = [one for one in sent if one.ended_at is not None]
        usual = forecast.pace(_rates(ended, self._now), assumed=self._assumed(backend), ahead=float(ahead))
        pace = self._today(usual, sent)
        if isinstance(backend, SyncBackend):
            cost, unpriced = self._token_cost(name, backend)
            return PacedOption(name, backend.location, cost, pace, objection or unpriced)
        # What stands still for a while is not dear for that: its hours are paid for what they do in the end.
        prices = prices_of(backend, self._config, lambda: self._now)
        return PacedOption(name, backend.location, _time_cost(prices, usual, len(backend.upstreams)), pace, objection)

    def _today(self, usual: Pace, sent: Sequence[Shard]) -> Pace:
        """What a backend does with this job's rows now, as far as it has shown itself."""
        mine = _stretches([one for one in sent if one.job_id == self._job.id], self._now)
        seconds, done = sum(one.seconds for one in mine), sum(one.done for one in mine)
        if seconds < MEASURED_AFTER or (usual.ahead and not done):
            return usual  # what waits behind others' rows says nothing of the speed
        # Nothing done yet is half a row: an engine that is still loading stands still for a while, not for good.
        return usual.now(max(done, 0.5) / seconds, seconds)

    def _assumed(self, backend: LocalBackend | SyncBackend) -> float:
        if isinstance(backend, LocalBackend):
            return ASSUMED_ROWS * len(backend.upstreams)
        rates = [] if backend.requests_per_minute is None else [backend.requests_per_minute / 60]
        if backend.tokens_per_minute is not None and self.rows:
            a_row = sum(one.rows * (one.input_tokens + one.output.mean) for one in self.shapes) / self.rows
            rates.append(backend.tokens_per_minute / 60 / max(1.0, a_row))
        return min(rates, default=ASSUMED_SYNC_ROWS)


def unfinished(shard: Shard, rows: int) -> int:
    """How many of a shard's open rows its backend has not done yet, as far as it says.

    Of a batch that is over and whose answers are waited for, none is here.
    """
    if waits_for_answers(shard):
        return rows
    return max(0, rows - shard.provider_completed - shard.provider_failed)


def waits_for_answers(shard: Shard) -> bool:
    """Whether a batch is over at its backend, and its files are not here, or not whole."""
    return shard.held is not None and shard.provider_status in _OVER


def _price(prices: Prices, model: str, usage: Usage) -> Decimal:
    price = prices.at_most(model, usage)
    assert price is not None, "paid by the token"
    return price.cost


def _time_cost(prices: Prices, pace: Pace, upstreams: int) -> Cost:
    if pace.rate <= 0:
        return FREE  # nothing runs there, so nothing is planned there
    seconds = upstreams / pace.rate
    return Cost(prices.of_time(seconds).cost, prices.of_time(seconds * math.exp(P95 * pace.spread)).cost)


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


@dataclass(slots=True)
class _Stretch:
    """A time in which at least one shard was at its backend, and how many rows came of it."""

    begin: datetime
    end: datetime
    done: int = 0

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()


def _stretches(sent: Sequence[Shard], now: datetime) -> list[_Stretch]:
    """When shards, given in the order in which they were sent, were at their backend."""
    found: list[_Stretch] = []
    for shard in sent:
        assert shard.submitted_at is not None, "it was sent"
        end = shard.ended_at or now
        if not found or shard.submitted_at > found[-1].end:
            found.append(_Stretch(shard.submitted_at, end))
        found[-1].end = max(found[-1].end, end)
        found[-1].done += shard.provider_completed + shard.provider_failed
    return found


def _rates(sent: Sequence[Shard], now: datetime) -> list[float]:
    """Rows a second of the times that a backend had rows, where they say so: a few leftovers do not."""
    found = [one for one in _stretches(sent, now) if one.done and one.seconds > 1.0]
    most = max((one.done for one in found), default=0)
    return [one.done / one.seconds for one in found if one.done >= A_GOOD_PART * most]
