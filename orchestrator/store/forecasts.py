"""Forecasts and their outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Integer, cast, func, or_, select, true, update

from orchestrator.core.model import Forecast, JobId, ProgressSample, RequestState
from orchestrator.store.database import Database
from orchestrator.store.tables import IS_BLOCKED, IS_ORIGINAL, forecasts, jobs, progress, requests, shards

_FIELDS = Forecast.__struct_fields__


class Forecasts:
    def __init__(self, database: Database) -> None:
        self._db = database

    def made(self, made: Sequence[Forecast]) -> None:
        """Store forecasts. The first forecast for a job, kind, shard and task is kept; later ones are ignored."""
        rows = [{name: getattr(one, name) for name in _FIELDS} for one in made]
        if rows:
            with self._db.write() as tx:
                tx.execute(self._db.upsert(forecasts).on_conflict_do_nothing(), rows)

    def settled(
        self,
        job_id: JobId,
        kind: str,
        actual: float,
        at: datetime,
        shard_id: str = "",
        task: str = "",
        *,
        censored: bool = False,
    ) -> None:
        """Store a forecast's outcome, in the unit of its kind. Only the first outcome of an existing forecast is
        stored.

        With `censored`, the run was cut short, so its value would have been larger.
        """
        c = forecasts.c
        statement = (
            update(forecasts)
            .where(c.job_id == job_id, c.kind == kind, c.shard_id == shard_id, c.task == task, c.actual.is_(None))
            .values(actual=actual, known_at=at, censored=censored)
        )
        with self._db.write() as tx:
            tx.execute(statement)

    def turnaround_p95(self, job_id: JobId, shard_id: str) -> float | None:
        """Return a shard's forecast turnaround in seconds (95th percentile), or None without a forecast."""
        c = forecasts.c
        with self._db.read() as tx:
            return tx.scalar(select(c.p95).where(c.job_id == job_id, c.kind == "turnaround", c.shard_id == shard_id))

    def since(self, when: datetime | None = None) -> list[Forecast]:
        """Return forecasts made since a time, or all, in the order of their creation."""
        return self._select(true() if when is None else forecasts.c.made_at >= when)

    def of_job(self, job_id: JobId) -> list[Forecast]:
        """Return the forecasts for a job, in the order of their creation."""
        return self._select(forecasts.c.job_id == job_id)

    def costs(self, series: str, newest: int = 60) -> list[tuple[float, float, float]]:
        """Return p50, p95 and actual cost, in dollars, of a job file's newest finished runs, the newest first."""
        c = forecasts.c
        query = (
            select(c.p50, c.p95, c.actual)
            .join(jobs, jobs.c.id == c.job_id)
            .where(jobs.c.series == series, c.kind == "cost", c.actual.is_not(None))
            .order_by(c.made_at.desc())
            .limit(newest)
        )
        with self._db.read() as tx:
            return [(p50, p95, cost) for p50, p95, cost in tx.execute(query)]

    def _select(self, which: ColumnElement[bool]) -> list[Forecast]:
        query = select(*(forecasts.c[name] for name in _FIELDS)).where(which)
        with self._db.read() as tx:
            found = tx.execute(query.order_by(forecasts.c.made_at, forecasts.c.id))
            return [Forecast(**row._mapping) for row in found]


class Observations:
    def __init__(self, database: Database) -> None:
        self._db = database

    def note(self, seen: Iterable[ProgressSample]) -> None:
        """Store progress of jobs at backends."""
        rows = [{name: value for name, value in asdict(one).items() if name != "series"} for one in seen]
        if rows:
            with self._db.write() as tx:
                tx.execute(self._db.upsert(progress).on_conflict_do_nothing(), rows)

    def progress(self, backend: str, since: datetime) -> list[ProgressSample]:
        """Return the progress of every job at a backend since a time, the oldest first."""
        c = progress.c
        query = (
            select(c.job_id, jobs.c.series, c.backend, c.at, c.done, c.left, c.input_tokens, c.output_tokens)
            .join(jobs, jobs.c.id == c.job_id)
            .where(c.backend == backend, c.at >= since)
            .order_by(c.at)
        )
        with self._db.read() as tx:
            return [ProgressSample(*row) for row in tx.execute(query)]

    def finishes(self, home: str, newest: int = 50) -> list[tuple[int, datetime, datetime]]:
        """Return (rows sent, end of the last batch, end of the job) for a home's newest finished jobs."""
        c = jobs.c
        query = (
            select(func.sum(shards.c.rows), func.max(shards.c.ended_at), c.finished_at)
            .join(shards, shards.c.job_id == c.id)
            .where(c.home == home, c.finished_at.is_not(None), c.cancel_requested_at.is_(None))
            .group_by(c.id, c.finished_at)
            .order_by(c.finished_at.desc())
            .limit(newest)
        )
        with self._db.read() as tx:
            return [(int(rows), last, end) for rows, last, end in tx.execute(query) if last is not None]

    def reasked(self, runs: Sequence[JobId]) -> list[tuple[int, int]]:
        """Return (finished rows, rows that needed more than one try) per run, in order. Runs with no rows are left
        out.
        """
        c = requests.c
        more = cast(or_(c.attempt > 0, c.again > 0, c.first_model.is_not(None)), Integer)
        query = (
            select(c.job_id, func.count(), func.sum(more))
            .where(c.job_id.in_(runs), c.state.in_((RequestState.SUCCEEDED, RequestState.FAILED)), IS_ORIGINAL)
            .where(c.length > 0)
            .group_by(c.job_id)
        )
        with self._db.read() as tx:
            found = {job_id: (int(rows), int(again)) for job_id, rows, again in tx.execute(query)}
        return [found[run] for run in runs if run in found]

    def models_reached(self, runs: Sequence[JobId]) -> list[dict[str, int]]:
        """Return, per run in order, the finished rows by the last model asked. Runs with no finished rows are left
        out.
        """
        c = requests.c
        query = (
            select(c.job_id, c.model, func.count())
            .where(c.job_id.in_(runs), c.state.in_((RequestState.SUCCEEDED, RequestState.FAILED)), IS_ORIGINAL)
            .where(c.length > 0)
            .group_by(c.job_id, c.model)
        )
        found: dict[str, dict[str, int]] = {}
        with self._db.read() as tx:
            for job_id, model, rows in tx.execute(query):
                found.setdefault(job_id, {})[model] = int(rows)
        return [found[run] for run in runs if run in found]

    def unmade(self, job_id: JobId) -> int:
        """Return the number of a job's rows whose requests need answers that do not exist yet."""
        query = select(func.count()).where(requests.c.job_id == job_id, IS_BLOCKED)
        with self._db.read() as tx:
            return tx.scalar(query) or 0
