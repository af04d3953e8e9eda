"""Speed of a backend's engines on a job's rows, from earlier nights, a bench or orch.toml."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.engines import EngineRates
from orchestrator.core.model import Job, JobId
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.policy import forecast
from orchestrator.policy.forecast import Assumed
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.planner import observations
from orchestrator.policy.planner.stints import Sight, work_of
from orchestrator.policy.planner.token_weights import output_weight
from orchestrator.settings.backends import (
    EnginesBackend,
    FleetBackend,
    OwnBackend,
    RayBackend,
    SyncBackend,
    TimedBackend,
)
from orchestrator.settings.config import Config
from orchestrator.store import Store

ASSUMED_WORK = 1_800.0
"""Assumed speed of an unknown upstream, in work per second (see `work_of`).

This equals one row per second with 1,000 prompt tokens and 100 answer tokens.
"""
ASSUMED_SYNC_ROWS = 5.0
"""Assumed rows per second of an unknown synchronous API."""
UNKNOWN_SPREAD, STATED_SPREAD, BENCH_SPREAD = 1.0, 0.35, 0.15
"""Spread of the logarithm of a rate: an assumed rate, a rate in orch.toml, and a rate measured by a bench."""
UNLIKE_SPREAD = 0.35
"""Spread added to a bench's rate if the rows' lengths differ from the bench's by a factor of ten."""
SHORT = 16.0
"""Tokens added to both lengths before comparing them, so that short lengths count as similar."""
FRESH = timedelta(hours=1)


class RowTokens(Struct, frozen=True):
    """Mean tokens of a row's prompt and answer."""

    input: float
    output: float


class ModelRows(Struct, frozen=True):
    """A job's rows for one model; `model` is its name in the job file."""

    model: str
    rows: int
    tokens: RowTokens


class EngineSpeed(Struct, frozen=True):
    """Speed of a backend on a job's rows.

    `history` has the progress of nights with the job's models. `learned` has the speeds from that history, in work
    with answer tokens weighted by `weight`. `assumed` is the speed used until one is learned.
    """

    history: Sight
    learned: forecast.Speeds
    weight: float
    assumed: Assumed


class EngineSpeeds:
    """Speeds of backends on a job's rows.

    `rows` returns token counts by model; `rough` estimates tokens from line lengths. Counting loads a vocabulary,
    which takes as long as a small job, so `rows` is called only if needed.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        job: Job,
        now: datetime,
        memory: ObservationMemory,
        rows: Callable[[], list[ModelRows]],
        rough: Callable[[], RowTokens],
    ) -> None:
        self._store = store
        self._config = config
        self._job = job
        self._now = now
        self._memory = memory
        self._rows = rows
        self._rough = rough

    def of(self, name: str, backend: OwnBackend, sight: Sight) -> EngineSpeed:
        measured = {} if isinstance(backend, SyncBackend) else self.measured(name)
        history = self._history(name, backend, sight)
        weights = [one.output_weight for one in measured.values() if one.output_weight is not None]
        key = frozenset(shard.job_id for shard in history.shards) if history is not sight else None
        weight, learned = self._memory.of(
            history, self._job.series, self._now, sum(weights) / len(weights) if weights else None, key
        )
        return EngineSpeed(history, learned, weight, self._assumed(name, backend, measured))

    def work(self, weight: float) -> float:
        """Return the mean work of a row, in prompt tokens; 0 without rows."""
        found = self._rows()
        rows = sum(one.rows for one in found)
        if not rows:
            return 0.0
        return sum(one.rows * work_of(one.tokens.input, one.tokens.output, weight) for one in found) / rows

    def measured(self, name: str) -> Mapping[str, EngineRates]:
        """Return a backend's bench rates for the job's models, by model name in the job file."""
        known = self._store.engine_rates.of(self._job.home, name)
        if not known:
            return {}
        models = models_of(self._config, self._job)
        found = {}
        for one in self._rows():
            rates = known.get(resolve_model(one.model, name, models) or one.model)
            if rates is not None:
                found[one.model] = rates
        return found

    def _history(self, name: str, backend: OwnBackend, sight: Sight) -> Sight:
        """Limit the history to jobs that used only models of this job, because each model has its own speed."""
        if not isinstance(backend, FleetBackend) or len(backend.models) < 2:
            return sight
        mine = self._models_of(self._job, name)
        jobs = {shard.job_id for shard in sight.shards} - {self._job.id}
        alike = {job_id for job_id in jobs if self._memory.models(job_id, name, self._read_models) <= mine}
        return sight.of_jobs(alike | {self._job.id})

    def _read_models(self, job_id: JobId, name: str) -> frozenset[str]:
        job = self._store.jobs.find(job_id)
        return frozenset() if job is None else self._models_of(job, name)

    def _models_of(self, job: Job, name: str) -> frozenset[str]:
        models = models_of(self._config, job)
        asked = {shard.model for shard in self._store.shards.of_job(job.id) if shard.backend == name}
        if job.id == self._job.id:
            asked |= {one.model for one in self._rows()}
        return frozenset(resolve_model(model, name, models) or model for model in asked)

    def _assumed(self, name: str, backend: OwnBackend, measured: Mapping[str, EngineRates]) -> Assumed:
        # The rates that orch.toml states for a Ray cluster are those of one engine.
        engines = backend.most_engines if isinstance(backend, RayBackend) else 1
        rates = [] if backend.rows_per_second is None else [backend.rows_per_second * engines]
        if backend.tokens_per_second is not None:
            rates.append(backend.tokens_per_second * engines / self._each)
        if isinstance(backend, SyncBackend):
            if backend.requests_per_minute is not None:
                rates.append(backend.requests_per_minute / 60)
            if backend.tokens_per_minute is not None:
                rates.append(backend.tokens_per_minute / 60 / self._each)
        if measured and isinstance(backend, TimedBackend):
            return self._by_bench(backend, measured)
        if rates:
            return Assumed(min(rates), STATED_SPREAD, forecast.STATED)
        if isinstance(backend, SyncBackend):
            return Assumed(ASSUMED_SYNC_ROWS, UNKNOWN_SPREAD)
        rough = self._rough()
        work = max(1.0, work_of(rough.input, rough.output))
        return Assumed(ASSUMED_WORK * backend.upstream_count / work, UNKNOWN_SPREAD)

    def _by_bench(self, backend: TimedBackend, measured: Mapping[str, EngineRates]) -> Assumed:
        """Return the rate of all rows; rows of an unmeasured model count as fast as the measured rows."""
        seconds, rows, apart = 0.0, 0, 0.0
        for one in self._rows():
            rates = measured.get(one.model)
            if rates is not None:
                fed, told = one.tokens.input, one.tokens.output
                seconds += one.rows / (rates.rows_per_second(fed, told) * _most_engines(backend, rates.model))
                rows += one.rows
                apart = max(apart, _apart(fed, rates.input_tokens), _apart(told, rates.output_tokens))
        spread = (BENCH_SPREAD**2 + (UNLIKE_SPREAD * apart) ** 2) ** 0.5
        return Assumed(rows / seconds, min(UNKNOWN_SPREAD, spread), forecast.BENCH)

    @property
    def _each(self) -> float:
        found = self._rows()
        tokens = sum(one.rows * (one.tokens.input + one.tokens.output) for one in found)
        return max(1.0, tokens / max(1, sum(one.rows for one in found)))


def _most_engines(backend: TimedBackend, model: str) -> float:
    if isinstance(backend, EnginesBackend) and model in backend.models:
        return max(1, backend.upstream_count // backend.models[model].tensor_parallel)
    if isinstance(backend, RayBackend) and model in backend.models:
        return max(1, backend.models[model].engines[1])
    return backend.upstream_count


def _apart(one: float, other: float) -> float:
    """Return the difference of two lengths in powers of ten; short lengths count as similar."""
    return abs(math.log10((one + SHORT) / (other + SHORT)))


class ObservationMemory:
    """Cache of the speeds learned from earlier nights. An entry expires after an hour."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[datetime, object, float, forecast.Speeds]] = {}
        self._models: dict[tuple[JobId, str], frozenset[str]] = {}

    def of(
        self, sight: Sight, series: str, now: datetime, measured: float | None, jobs: frozenset[JobId] | None
    ) -> tuple[float, forecast.Speeds]:
        """Return the weight of answer tokens and a backend's speeds.

        `jobs` names the jobs to which `sight` is limited (None: all). Values are cached for the same `measured` and
        `jobs`.
        """
        key, asked = (sight.backend, series), (measured, jobs)
        at, about, weight, speeds = self._known.get(key, (None, None, 0.0, None))
        if at is None or speeds is None or about != asked or now - at >= FRESH or now < at:
            weight = output_weight(sight, measured)
            speeds = observations.speeds(sight, series, now, weight)
            self._known[key] = now, asked, weight, speeds
        return weight, speeds

    def models(self, job_id: JobId, name: str, read: Callable[[JobId, str], frozenset[str]]) -> frozenset[str]:
        """Return a backend's names for another job's models, cached. They do not change once its rows are there."""
        if (job_id, name) not in self._models:
            self._models[job_id, name] = read(job_id, name)
        return self._models[job_id, name]
