"""Reads ended jobs and shards for telemetry: records from the store, prompts and answers from the home."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.listening import host_and_port
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard, ShardState
from orchestrator.daemon.telemetry.messages import bounded, content_of
from orchestrator.daemon.telemetry.spans import (
    PROVIDERS,
    ServedBy,
    TraceSpan,
    Value,
    job_span,
    operation,
    row_span,
    shard_spans,
    unsent_span,
)
from orchestrator.daemon.telemetry.usage import (
    DURATION_BOUNDS_MS,
    TOKEN_BOUNDS,
    HistogramPoint,
    duration_point,
    token_point,
)
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.policy.model_names import resolve_model
from orchestrator.reports.requests_and_answers import exchange_at
from orchestrator.settings.backends import Backend, HostedBackend, SyncBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import rung_of
from orchestrator.settings.stored_spec import spec_of
from orchestrator.settings.telemetry import Telemetry
from orchestrator.store import Store
from orchestrator.store.rows_by_document import FoundRow
from orchestrator.store.telemetry import Booked, Spread

MOST_ROWS = 1000
"""Maximum number of rows of a batch that get spans. If all rows fail, the first thousand show the cause."""


class EndedWork(Struct, frozen=True):
    """An ended job or shard. `key` is unique. A job that ends a second time gets another key."""

    key: str
    at: datetime
    job: Job
    shard: Shard | None = None


class TraceReader:
    """Reads the telemetry data of a home, as `[telemetry]` asks. `config` returns the current settings."""

    def __init__(self, store: Store, home: Home, config: Callable[[], Config], now: Callable[[], datetime]) -> None:
        self._store = store
        self._home = home
        self._config = config
        self._now = now

    def ended(self, since: datetime) -> list[EndedWork]:
        """Return the jobs and shards that ended at or after `since`, in order. A job's shards come before the job."""
        home = self._home.identity()
        over = self._store.telemetry.ended_jobs(home, since)
        found = []
        for job in [*self._store.jobs.unfinished(home), *(job for job, _ in over)]:
            for shard in self._store.shards.of_job(job.id):
                at = shard.collected_at
                if shard.state is ShardState.COLLECTED and at is not None and at >= since:
                    found.append(EndedWork(shard.id, at, job, shard))
        found += [EndedWork(f"{job.id}@{at.isoformat()}", at, job) for job, at in over]
        return sorted(found, key=lambda one: (one.at, one.shard is None, one.key))

    def spans(self, ended: EndedWork, settings: Telemetry) -> Iterator[TraceSpan]:
        """Yield the spans of a job or a shard, with the spans of its failed or sampled rows."""
        if ended.shard is None:
            yield from self._of_job(ended.job, ended.at, settings)
        else:
            yield from self._of_shard(ended.job, ended.shard, settings)

    def points(self, ended: EndedWork) -> Iterator[HistogramPoint]:
        """Yield a shard's points for the metrics. Yields nothing for a job."""
        if (shard := ended.shard) is None:
            return
        served, asked = self._served(shard), self._requested_model(ended.job, shard)
        about = served, operation(shard.endpoint), asked
        booked = self._booked(shard)
        for kind, spread in (("input", booked.input_tokens), ("output", booked.output_tokens)):
            if spread is not None:
                yield token_point(spread, *about, kind)
        for code, spread in self._store.telemetry.durations(shard.id, DURATION_BOUNDS_MS).items():
            yield duration_point(spread, *about, code)

    def _of_job(self, job: Job, at: datetime, settings: Telemetry) -> Iterator[TraceSpan]:
        is_private = _is_private(job, settings)
        for found in self._store.telemetry.never_sent(job.id, MOST_ROWS):
            words = _words(found) if settings.content and not is_private else {}
            yield unsent_span(job, found.row, words, named=not is_private)
        store = self._store
        yield job_span(
            job, at, store.jobs.counts([job.id])[job.id], store.ledger.spent(job.id), store.jobs.tags(job.id),
            store.jobs.events(job.id), with_reasons=settings.content and not is_private,
        )  # fmt: skip

    def _of_shard(self, job: Job, shard: Shard, settings: Telemetry) -> Iterator[TraceSpan]:
        every = None if settings.sample == 0 else max(1, round(1 / settings.sample))
        rows = self._store.telemetry.notable_rows(shard.id, every, MOST_ROWS + 1)
        served, asked, booked = self._served(shard), self._requested_model(job, shard), self._booked(shard)
        is_private = _is_private(job, settings)
        for found in rows[:MOST_ROWS]:
            told = self._content(job, found) if settings.content and not is_private else {}
            model = found.sent_model or asked
            yield row_span(job, shard, found.row, served, model, told, named=not is_private)
        tokens = _total(booked.input_tokens), _total(booked.output_tokens)
        yield from shard_spans(job, shard, served, booked.cost, tokens, is_cut=len(rows) > MOST_ROWS)

    def _content(self, job: Job, found: FoundRow) -> dict[str, Value]:
        try:
            exchange = exchange_at(self._store, self._home, job, found.row.seq)
            body = {} if exchange is None else exchange.body
        except JSON_ERRORS:
            exchange = None  # the job's files are damaged, so the row's span is sent without content
        if exchange is None:
            return _words(found)
        output, reason = exchange.merged["output"], exchange.merged["provenance"]["finish_reason"]
        answer = output if isinstance(output, str) or output is None else msgspec.json.encode(output).decode()
        return {**content_of(body, answer, reason), **_words(found)}

    def _booked(self, shard: Shard) -> Booked:
        return self._store.telemetry.booked(shard.id, TOKEN_BOUNDS)

    def _requested_model(self, job: Job, shard: Shard) -> str:
        names = models_of(self._config(), job)
        return resolve_model(shard.model, shard.backend, names) or rung_of(shard.model)[0]

    def _served(self, shard: Shard) -> ServedBy:
        settings = self._config()
        backend = settings.backends.get(shard.backend)
        return ServedBy("unknown") if backend is None else served_by(backend, settings, self._now)


def served_by(backend: Backend, settings: Config, now: Callable[[], datetime]) -> ServedBy:
    """Return the provider that serves a backend. Our own upstreams count as vLLM servers."""
    if not isinstance(backend, SyncBackend | HostedBackend):
        return ServedBy("vllm")
    known: str | None = getattr(prices_of(backend, settings, now), "provider", None)
    name = PROVIDERS.get(backend.kind) or PROVIDERS.get(known or "", known or "unknown")
    # A provider with one address per region has no single address.
    return ServedBy(name, *host_and_port(backend.base_url))


def _is_private(job: Job, settings: Telemetry) -> bool:
    """True if contents and names of the user's files must not be sent to the receiver."""
    spec = spec_of(job)
    return spec is not None and spec.allow.location == "local" and not settings.stays_here


def _words(found: FoundRow) -> dict[str, Value]:
    """Return the error message of a failed row as an attribute. It may quote the row's answer."""
    message = found.row.error_message
    return {} if message is None else {"orch.error.message": bounded(message)}


def _total(spread: Spread | None) -> int:
    return 0 if spread is None else spread.total
