"""Requests that another job has in flight: a new job awaits their answers instead of asking again.

A row in flight is awaited if its request is the same and the new job may use its backend and model. An unsent row is
awaited if the new job runs beside the row's job. A request with sampling, or of a task with `cache: false`, is always
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache

from msgspec import Struct

from orchestrator.core.model import SUPERSEDED_BY, Job, JobId, JobKind
from orchestrator.core.shards import ShardId
from orchestrator.pipeline.backend_handles import Models
from orchestrator.pipeline.build.reused_answers import Asked
from orchestrator.pipeline.plan.synchronous_backends import AT_ONCE
from orchestrator.pipeline.succession import Edited, open_jobs
from orchestrator.policy.cache_keys import has_one_answer
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.requests import Built
from orchestrator.store import Store
from orchestrator.store.records import RowInFlight, awaits


def takes_answers(job: Job) -> bool:
    """True if a job takes answers of other jobs. False with `--new`, and for a trial."""
    return bool(job.options.get("carry", True)) and not job.options.get(AT_ONCE)


class _Source(Struct, frozen=True):
    models: Models
    is_same_file: bool
    is_superseded: bool
    is_beside: bool


class Sharing:
    def __init__(
        self, store: Store, job: Job, asked: Asked, models: Callable[[Job], Models], hosted: Collection[str]
    ) -> None:
        self._store = store
        self._job = job
        self._asked = asked
        self._models = models
        self._hosted = hosted
        self._sources: dict[JobId, _Source] = {}
        if not takes_answers(job):
            return
        for name in open_jobs(store, job.home):
            other = store.jobs.find(name)
            if other is None or other.id == job.id or other.built_at is None:
                continue
            is_superseded = other.options.get(SUPERSEDED_BY) == job.id
            with suppress(ValueError):  # a job whose stored file is damaged shares nothing
                theirs, is_same_file = models(other), other.series == job.series
                is_beside = is_same_file and theirs == models(job) and _asks_for(other, job)
                self._sources[name] = _Source(theirs, is_same_file, is_superseded, is_beside)
        self._is_in_time = cache(self._in_time)

    @property
    def superseded(self) -> list[JobId]:
        """The jobs that this job supersedes and whose aliases have the same models."""
        mine = self._models(self._job) if self._sources else {}
        return [name for name, source in self._sources.items() if source.is_superseded and source.models == mine]

    def of(self, made: list[Built]) -> dict[int, tuple[int, str]]:
        """Return the row that each request may await, by the request's number, in the form of `awaits`."""
        if not self._sources:
            return {}
        rows = [one.row for one in made if one.row.problem is None and one.line]
        keys = {row.cache_key for row in rows if row.cache_key is not None and self._asked(row.model)}
        checked = self._job.kind is JobKind.DOCUMENTS
        by_key = self._store.awaited.by_key(self._sources.keys(), keys, checked=checked)
        same = [name for name, source in self._sources.items() if source.is_same_file]
        unkeyed = (one for one in made if one.row.cache_key is None and self._job.kind is JobKind.BATCH)
        wanted = {one.row.custom_id: one.row.fingerprint for one in unkeyed if same and has_one_answer(one.line)}
        by_id = self._store.awaited.by_id(same, wanted)
        found: dict[int, tuple[int, str]] = {}
        for row in rows:
            likely = by_key.get(row.cache_key or "", []) or [by_id[name] for name in [row.custom_id] if name in by_id]
            for one in likely:
                if self._may_take(one, row.model):
                    found[row.seq] = awaits(one)
                    break
        beside = [name for name, source in self._sources.items() if source.is_beside]
        left = {name: mark for name, mark in wanted.items() if name not in by_id}
        unsent = self._store.awaited.asked_by(beside, keys - by_key.keys(), left)
        marks = ((row.seq, row.cache_key or row.custom_id) for row in rows)
        return {seq: unsent[mark] for seq, mark in marks if mark in unsent} | found

    def _may_take(self, one: RowInFlight, model: str) -> bool:
        source, places = self._sources[one.job_id], self._asked(model)
        name = resolve_model(one.model, one.backend, source.models) or one.model
        if (one.backend, name) not in places:
            return False
        # A new batch at that backend would end no sooner than the batch in flight.
        is_only = one.backend in self._hosted and {backend for backend, _ in places} == {one.backend}
        return is_only or source.is_superseded or self._is_in_time(one.job_id, one.shard_id)

    def _in_time(self, job_id: JobId, shard_id: ShardId) -> bool:
        due = expected_at(self._store, job_id, shard_id)
        return self._job.deadline_at is None or due is None or due <= self._job.deadline_at


def _asks_for(other: Job, job: Job) -> bool:
    """True if an unfinished run of the same file also asks its unsent rows for this job.

    That run must be due no later, and have the same backend and settings.
    """
    is_soon = job.deadline_at is None or (other.deadline_at is not None and other.deadline_at <= job.deadline_at)
    is_alike = all(other.options.get(name) == job.options.get(name) for name in ("backend", "config"))
    return bool(job.options.get(Edited.BESIDE)) and is_soon and is_alike and other.cancel_requested_at is None


def expected_at(store: Store, job_id: JobId, shard_id: ShardId) -> datetime | None:
    """Return the forecast time (p95) of a shard's end, or None without a forecast."""
    shard, seconds = store.shards.get(shard_id), store.forecasts.turnaround_p95(job_id, shard_id)
    if seconds is None:
        return None
    return (shard.submitted_at or shard.intended_at or shard.created_at) + timedelta(seconds=seconds)
