"""Options of the planner: the cost and duration of a job's rows at each backend.

They are computed from prices, earlier jobs, quotas and rows of other jobs. These facts come from the store, orch.toml
and the profiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property

from msgspec.structs import replace

from orchestrator.backends.open import limits_of, profile_for
from orchestrator.backends.profiles import Profile, window_for
from orchestrator.core.engines import start_seconds
from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job, JobId, JobKind
from orchestrator.core.shards import AT_BACKEND
from orchestrator.core.tokens import BYTES_PER_TOKEN
from orchestrator.pipeline.backend_handles import Prices
from orchestrator.pipeline.plan.engine_speeds import EngineSpeeds, ModelRows, ObservationMemory, RowTokens
from orchestrator.pipeline.plan.prices import ByToken, Shape, going_on, prices_of
from orchestrator.pipeline.plan.routes import Aliases, models_of, objections
from orchestrator.pipeline.plan.token_density import density
from orchestrator.policy import budgets, forecast, quota
from orchestrator.policy.forecast import Lengths
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.planner import (
    BatchOption,
    Claim,
    Cost,
    CostSteps,
    Open,
    Option,
    SynchronousOption,
    observations,
)
from orchestrator.policy.planner.job_orders import seconds_beside
from orchestrator.policy.planner.stints import Sight, unfinished
from orchestrator.policy.planner.types import SLIPS
from orchestrator.settings.backends import (
    Backend,
    FleetBackend,
    OwnBackend,
    OwnServer,
    RayBackend,
    SyncBackend,
    TimedBackend,
)
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import above, is_of
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.store import Store
from orchestrator.store.records import OpenRows

RUNS = 10
"""Maximum number of earlier runs of a job file used to learn its answer lengths."""
UNBOUNDED_OUTPUT = 4096
"""Assumed tokens of an answer without `max_tokens`.

A job with a budget never sends rows without `max_tokens` to backends paid by the token.
"""
DAY = 86_400
P95 = 1.645
FREE = Cost(Decimal(0), Decimal(0))
REMEMBERED = timedelta(days=30)
"""Maximum age of the engine progress that is used."""


class Prospects:
    """Options of a job's open rows at one moment. Reads the store and never changes it."""

    def __init__(
        self,
        store: Store,
        config: Config,
        job: Job,
        work: Sequence[OpenRows],
        now: datetime,
        down: Mapping[str, float],
        memory: ObservationMemory,
        only: Aliases | None = None,
    ) -> None:
        """`down` maps each backend without a working upstream to the seconds since the last upstream failed.

        With `only`, only rows of these aliases count.
        """
        self._only = only
        self._store = store
        self._config = config
        self._job = job
        self._open = work
        self._now = now
        self._down = down
        self._memory = memory
        self._seen: dict[str, Sight] = {}
        self._seen_lengths: dict[tuple[str, str], dict[int, int]] = {}
        self._densities: dict[tuple[str, str], float] = {}

    @cached_property
    def rows(self) -> int:
        return sum(part.rows for part in self._open)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shapes of open rows that no engine has finished, by model."""
        parts: dict[str, list[tuple[int, float, Lengths]]] = {}
        for part in self._left:
            fed = part.bytes * self._density(part) / part.rows
            parts.setdefault(part.model, []).append((part.rows, fed, self.lengths(part)))
        return [Shape.of(model, found) for model, found in parts.items()]

    @cached_property
    def _left(self) -> Sequence[OpenRows]:
        """The open rows that no engine has finished yet. Engines process a batch in order."""
        own = [name for name, backend in self._config.backends.items() if isinstance(backend, OwnServer)]
        seen = (shard for name in own for shard in self._sight(name).shards)
        mine = [shard for shard in seen if shard.job_id == self._job.id and is_of(shard.model, self._only)]
        begun = (one for one in mine if one.state in AT_BACKEND and one.done_rows)
        at_work = {str(one.id): unfinished(one, one.rows) for one in begun}
        found = [part for part in self._open if part.shard_id not in at_work]
        found += [part for shard_id, left in at_work.items() for part in self._store.sizes.last_work(shard_id, left)]
        return found or self._open

    @cached_property
    def _runs(self) -> list[JobId]:
        return [run.id for run in self._store.jobs.of_series(self._job.series)[:RUNS]]

    def lengths(self, part: OpenRows) -> Lengths:
        """Return the expected answer lengths of a task's rows, learned from earlier runs of the job file."""
        most = part.max_output // part.rows if part.max_output is not None else UNBOUNDED_OUTPUT
        key = (part.task, part.prompt_version)
        if key not in self._seen_lengths:
            self._seen_lengths[key] = self._store.sizes.output_lengths(self._runs, *key)
        return forecast.output_lengths(self._seen_lengths[key], most)

    def _density(self, part: OpenRows) -> float:
        """Return the prompt tokens per byte of a task's lines. May count tokens, which is slow."""
        key = (part.task, part.prompt_version)
        if key not in self._densities:
            self._densities[key] = density(self._store, Home(self._config.home), self._job, self._runs, *key)
        return self._densities[key]

    @cached_property
    def options(self) -> list[Option]:
        """All backends of orch.toml, each with an objection if it cannot take this job."""
        against = self._objections
        given_up = self._given_up
        if any(name not in against and name not in given_up for name in self._config.backends):
            against = {**given_up, **against}  # if all eligible backends are down, wait for them
        few = {name: why for name in self._config.backends if (why := self._few_rows(name)) is not None}
        is_left = any(name not in against and name not in few for name in self._config.backends)
        if is_left or not self._store.shards.of_job(self._job.id):
            # Leftover rows of a job that has begun may have no other backend. There they fail as too few, which is
            # reported.
            against = {**few, **against}
        against = {**self.unbounded, **against}
        return [self._option(name, backend, against.get(name)) for name, backend in self._config.backends.items()]

    @property
    def _objections(self) -> Mapping[str, str]:
        """Objections to backends. Learned refusals count only if they leave a backend for the rows."""

        def refused(backend: str, model: str, endpoint: str) -> Collection[str]:
            return self._store.refused_fields.of(backend, model, endpoint, self._job.created_at)

        learned = objections(self._config, self._job, refused, self._only)
        is_left = any(name not in learned for name in self._config.backends)
        return learned if is_left else objections(self._config, self._job, only=self._only)

    @property
    def unbounded(self) -> dict[str, str]:
        """Objections to backends paid by the token, if a budget applies and rows have no `max_tokens`."""
        if all(part.max_output is not None for part in self._open):
            return {}
        held_to = None if self._job.budget is None else "a budget"
        if held_to is None and self._config.budgets:
            shared = budgets.counting(self._config.budgets, self._store.jobs.tags(self._job.id))
            held_to = f"budget {shared[0].name}" if shared else None
        if held_to is None:
            return {}
        paid = (name for name, one in self._config.backends.items() if not isinstance(one, TimedBackend))
        return dict.fromkeys(paid, f"rows without `max_tokens` cannot be held to {held_to}")

    @property
    def _given_up(self) -> dict[str, str]:
        found = {}
        for name, seconds in self._down.items():
            backend = self._config.backends.get(name)
            if isinstance(backend, OwnServer) and seconds > backend.patience:
                found[name] = f"no upstream of it has taken a row for {seconds:.0f} s"
        return found

    def _option(self, name: str, backend: Backend, objection: str | None) -> Option:
        if isinstance(backend, OwnServer):
            return self._synchronous(name, backend, objection)
        sight, profile = self._sight(name), profile_for(backend)
        cost, unpriced = self._token_cost(name, backend, self._now)
        room, behind = self._room(name, backend, profile)
        cancel: float = observations.GIVEN_UP
        usual, slips = cancel, SLIPS
        if profile.cancels:
            cancel = observations.seconds_until_free(sight.shards, self._now)
            usual = observations.median_cancel(sight.shards, self._now)
            slips = observations.slips(sight.shards, self._now, cancel)
        return BatchOption(
            backend=name,
            location=backend.location,
            cost=cost,
            turnaround=observations.turnaround(sight, max(1, self.rows), self._now),
            cancel_seconds=cancel,
            room=room,
            behind=behind,
            window=float(window_for(profile, DAY).seconds),
            silent=observations.silence(sight.shards, self._now),
            slips=slips,
            cancel_usual=usual,
            objection=objection or unpriced,
            least=limits_of(backend, profile).min_rows,
            cancels=profile.cancels,
            paid_twice=observations.paid_twice(sight.shards),
            begins=observations.first_row_share(sight.shards),
        )

    def _few_rows(self, name: str) -> str | None:
        backend, waiting = self._config.backends[name], Counter[str]()
        least = limits_of(backend, profile_for(backend)).min_rows
        for part in self._open:
            if part.shard_id is None and name not in part.avoid:
                waiting[part.model] += part.rows
        fewest = min(waiting.values(), default=least)
        return quota.few_rows(least, fewest) if fewest < least else None

    def _sight(self, name: str) -> Sight:
        if name not in self._seen:
            own = isinstance(self._config.backends[name], OwnServer)
            progress = self._store.observations.progress(name, self._now - REMEMBERED) if own else ()
            sight = Sight(name, self._store.shards.sent_to(name), progress)
            if isinstance(backend := self._config.backends[name], RayBackend):
                holds = self._store.engine_holds.since(self._now - REMEMBERED)
                mine = [one for one in holds if one.backend == name]
                sight = replace(sight, holds=mine, most_engines=backend.most_engines)
            self._seen[name] = sight
        return self._seen[name]

    @cached_property
    def last_used(self) -> Mapping[str, datetime]:
        """Times at which backends last had rows. Backends that were never used are missing."""
        seen = {name: observations.last_used(self._sight(name), self._now) for name in self._config.backends}
        return {name: at for name, at in seen.items() if at is not None}

    @cached_property
    def cancels(self) -> Mapping[str, float]:
        """Maximum seconds until a rerouted batch releases its rows, by backend."""
        return {option.backend: option.cancel_seconds for option in self.options}

    # --- other jobs

    @cached_property
    def _others(self) -> list[Job]:
        """Unfinished jobs of the home whose rows an engine processes before this job's rows."""
        jobs = [job for job in self._store.jobs.unfinished(self._job.home) if job.built_at is not None]
        first = observations.goes_first(jobs, self._job, self._now)
        return [job for job in jobs if job.id in first]

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Rows of other jobs that may later need the synchronous backends."""
        others = {job.id: self._store.shards.of_job(job.id) for job in self._others}
        deadlines = {job.id: job.deadline_at for job in self._others if job.deadline_at is not None}
        batches = [option for option in self.options if isinstance(option, BatchOption)]
        synchronous = frozenset(option.backend for option in self.options if isinstance(option, SynchronousOption))
        return observations.claims(others, deadlines, batches, synchronous, self._now)

    @cached_property
    def later(self) -> int:
        """Expected number of rows not created yet: later parts of long documents, and re-asked answers."""
        made = self._store.observations.unmade(self._job.id) if self._has_long_tasks else 0
        again = observations.reask_share(self._store.observations.reasked(self._runs))
        return made + int(again * (self.rows + made) + 0.5)

    @property
    def _has_long_tasks(self) -> bool:
        """True unless `only` excludes every model that combines the answers about a document's parts."""
        long = (task.long.reduce_model or task.model for task in tasks_of(self._job) if task.long is not None)
        return self._only is None or any(alias in self._only for alias in long)

    @cached_property
    def later_cost(self) -> Cost | None:
        """Cost of one `later` row, which may go to a stronger model. None if it costs the same as an open row."""
        models = models_of(self._config, self._job)
        # Counting the tokens of `shapes` loads a vocabulary, so it is done only if a stronger model may be asked.
        if not any(above(part.model, models) for part in self._open):
            return None
        steps = [(shape, rung) for shape in self.shapes for rung in above(shape.model, models)]
        reached, found, rest = self._store.observations.models_reached(self._runs), FREE, float(self.later)
        for shape, rung in steps:
            usual, most = observations.reached_share(going_on(reached, rung), shape.rows)
            if (each := self._cheapest(replace(shape, model=rung))) is not None:
                found, rest = _plus(found, each, usual * shape.rows, most * shape.rows), rest - usual * shape.rows
        base = min((one.cost for one in self.options if one.objection is None), key=_p50, default=FREE)
        return _plus(found, base, max(0.0, rest), max(0.0, rest))

    def _cheapest(self, shape: Shape) -> Cost | None:
        models, found = models_of(self._config, self._job), []
        for option in self.options:
            backend = self._config.backends[option.backend]
            model = resolve_model(shape.model, option.backend, models)
            if option.objection is None and model is not None and not isinstance(backend, TimedBackend):
                with suppress(UsageError):
                    found.append(shape.cost(prices_of(backend, self._config, lambda: self._now), model))
        return min(found, key=_p50, default=None)

    @property
    def dearest(self) -> float:
        """Highest ratio of cost to forecast p50 among earlier runs that cost more than forecast."""
        return observations.dearest(self._store.forecasts.costs(self._job.series))

    @cached_property
    def margin(self) -> float:
        """Seconds that finishing the job may take after its last answer."""
        finishes = self._store.observations.finishes(self._job.home)
        return observations.finish_seconds(finishes, self.rows, self._now)

    # --- money

    def _cost_steps(self, name: str, backend: SyncBackend) -> CostSteps:
        prices, models = prices_of(backend, self._config, lambda: self._now), models_of(self._config, self._job)
        if self._job.deadline_at is None or not isinstance(prices, ByToken):
            return ()
        asked = {resolve_model(shape.model, name, models) or shape.model for shape in self.shapes}
        times = {at for model in asked for at in prices.changes(model, self._job.deadline_at)}
        costs = [(at, self._token_cost(name, backend, at)) for at in sorted(times)]
        return tuple(((at - self._now).total_seconds(), cost) for at, (cost, unpriced) in costs if unpriced is None)

    def _token_cost(self, name: str, backend: Backend, at: datetime) -> tuple[Cost, str | None]:
        prices = prices_of(backend, self._config, lambda: at)
        models, p50, p95 = models_of(self._config, self._job), Decimal(0), Decimal(0)
        try:
            for shape in self.shapes:
                model = resolve_model(shape.model, name, models)
                if model is None and shape.model in models:
                    if self._job.kind is JobKind.BATCH:
                        cure = f'give it one in orch.toml:  [models]  {shape.model} = {{{name} = "NAME"}}'
                        raise UsageError(f"the model {shape.model} has no name there", hint=cure)
                    continue  # the backend lacks this model of a list: rows for this model avoid the backend
                each = shape.cost(prices, model or shape.model)
                p50, p95 = p50 + shape.rows * each.p50, p95 + shape.rows * each.p95
        except UsageError as error:
            return FREE, error.reason
        rows = max(1, sum(shape.rows for shape in self.shapes))
        return Cost(p50 / rows, max(p50, p95) / rows), None

    def _room(self, name: str, backend: Backend, profile: Profile) -> tuple[int | None, int]:
        """Return the rows that a backend's tightest quota takes (None: no limit), and other jobs' rows in it."""
        rooms = []
        for shape in self.shapes:
            learned = quota.current(self._store.limits.of(name, shape.model), self._now)
            limit = quota.effective(limits_of(backend, profile).enqueued(shape.model), learned.enqueued_tokens)
            if limit is not None:
                others = (
                    one.tokens
                    for one in self._store.shards.at_backend(name)
                    if one.model == shape.model and one.job_id != self._job.id
                )
                each = max(1.0, shape.input_tokens)
                rooms.append((int(limit / each), int(sum(others) / each)))
        return min(rooms, default=(None, 0), key=lambda one: one[0] or 0)

    # --- speed

    def _synchronous(self, name: str, backend: OwnBackend, objection: str | None) -> SynchronousOption:
        first = frozenset(job.id for job in self._others)
        asker = observations.Asker(self._job.series, first)
        is_local = isinstance(backend, TimedBackend)
        speed = self._engine_speeds.of(name, backend, self._sight(name))
        # Counting loads a vocabulary, so it is done only if speeds are in tokens.
        work = self._engine_speeds.work(speed.weight) if speed.learned.counted else 0.0
        pace = observations.pace(
            self._sight(name), asker, speed.assumed, work, self._now, speed.learned,
            starts=observations.ASSUMED_START if is_local else observations.QUICK_START,
            weight=speed.weight, history=speed.history,
        )  # fmt: skip
        if (seconds := self._down.get(name)) is not None:
            pace = pace.now(0.0, seconds)
        leaves = observations.cancel_seconds(self._sight(name).shards, self._now, observations.OWN_CANCEL)
        together = observations.slow_with(self._late_nights, speed.learned, pace.rate * (work or 1.0))
        if isinstance(backend, SyncBackend):
            cost, unpriced = self._token_cost(name, backend, self._now)
            steps = self._cost_steps(name, backend) if unpriced is None else ()
            against = objection or unpriced
            return SynchronousOption(
                name, backend.location, cost, pace, against, leaves, cost_steps=steps, slow_with=together
            )
        # A pause does not make an upstream expensive: an hour's price is spread over the work that is done in the
        # end.
        usual = forecast.pace(speed.learned, speed.assumed, now=self._now, tokens=work)
        prices = prices_of(backend, self._config, lambda: self._now)
        cost = _time_cost(prices, pace if pace.rate > 0 else usual, backend.upstream_count)
        if isinstance(backend, FleetBackend):
            openings = () if backend.open_hours is None else backend.open_hours.steps(self._now)
            pace = forecast.within_hours(pace, usual, openings, self._start_of(name))
        return SynchronousOption(
            name, backend.location, cost, pace, objection, leaves, timed=True, slow_with=together
        )

    @cached_property
    def _late_nights(self) -> Mapping[str, Collection[date]]:
        hosted = [name for name, backend in self._config.backends.items() if not isinstance(backend, OwnServer)]
        return {name: observations.late_nights(self._sight(name).shards) for name in hosted}

    def _start_of(self, name: str) -> float:
        starts = start_seconds(self._store.engine_holds.since(self._now - REMEMBERED), name)
        benched = {model: one.start_seconds for model, one in self._engine_speeds.measured(name).items()}
        known = {**{model: seconds for model, seconds in benched.items() if seconds is not None}, **starts}
        return max(known.values(), default=observations.ASSUMED_START)

    @cached_property
    def _engine_speeds(self) -> EngineSpeeds:
        return EngineSpeeds(
            self._store, self._config, self._job, self._now, self._memory, self._model_rows, self._rough_tokens
        )

    def _model_rows(self) -> list[ModelRows]:
        return [ModelRows(one.model, one.rows, RowTokens(one.input_tokens, one.output_tokens)) for one in self.shapes]

    def _rough_tokens(self) -> RowTokens:
        rows = max(1, sum(part.rows for part in self._left))
        told = sum(part.rows * self.lengths(part).mean for part in self._left) / rows
        return RowTokens(sum(part.bytes for part in self._left) / rows / BYTES_PER_TOKEN, told)


def _p50(cost: Cost) -> Decimal:
    return cost.p50


def _plus(cost: Cost, each: Cost, usual: float, most: float) -> Cost:
    return Cost(cost.p50 + Decimal(repr(usual)) * each.p50, cost.p95 + Decimal(repr(most)) * each.p95)


def _time_cost(prices: Prices, pace: forecast.Pace, upstreams: int) -> Cost:
    if pace.rate <= 0:
        return FREE  # nothing runs at this backend, so nothing is planned for it
    seconds = upstreams / pace.rate
    return Cost(prices.of_time(seconds).cost, prices.of_time(seconds * math.exp(P95 * pace.spread)).cost)


def seconds_of(
    option: Option, rows: int, chance: float, back: int = 0, job: Open | None = None, now: datetime | None = None
) -> float:
    """Return the seconds that these rows take at a backend with this probability; at most a day.

    Another `back` rows of `job` return from batches that are being cancelled at `now`.
    """
    if isinstance(option, BatchOption):
        return min(DAY, option.turnaround.within(chance))
    if job is None or now is None:
        return min(DAY, option.pace.seconds_for(rows, chance))
    return min(DAY, seconds_beside(option, rows, back, job, now, chance))


def is_assumed(option: Option) -> bool:
    """True if a backend's figures are mostly guesses."""
    return not (option.turnaround.is_known if isinstance(option, BatchOption) else option.pace.is_known)
