"""Jobs, their tags and events, and the documents that their builds found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import bindparam, delete, desc, func, insert, literal, or_, select, update

from orchestrator.core.counts import Counts
from orchestrator.core.errors import StateConflict, UsageError
from orchestrator.core.events import Event, EventKind
from orchestrator.core.model import CancelCode, Job, JobFault, JobId, JobKind
from orchestrator.core.near_names import meant
from orchestrator.core.shards import ShardId
from orchestrator.store import bulk, job_figures
from orchestrator.store.database import Database
from orchestrator.store.records import FileMark, SeenDocument
from orchestrator.store.tables import documents, events, jobs, tags

# Built once, because building a statement takes three times as long as executing it.
_BY_ID = select(jobs).where(jobs.c.id == bindparam("job"))
_OF_SERIES = select(jobs).where(jobs.c.series == bindparam("series")).order_by(desc(jobs.c.created_at))
_MARKS = select(*(documents.c[name] for name in ("key", "stamp", "content", "digest", "size", "last_seen_at")))
_UNFINISHED = (
    select(jobs)
    .where(jobs.c.home == bindparam("home"), jobs.c.finished_at.is_(None), jobs.c.error.is_(None))
    .order_by(func.coalesce(jobs.c.deadline_at, 1 << 62), jobs.c.created_at)
)


def job_of(row: Any) -> Job:
    values = dict(row._mapping)
    values["kind"] = JobKind(values["kind"])
    return Job(**values)


class Jobs:
    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, job: Job, job_tags: Mapping[str, str]) -> None:
        with self._db.write() as tx:
            tx.execute(insert(jobs).values(**asdict(job)))
            if job_tags:
                tx.execute(insert(tags), [{"job_id": job.id, "key": k, "value": v} for k, v in job_tags.items()])

    def get(self, job_id: str) -> Job:
        """Return the job with this id, or the only job with this id prefix. Raises UsageError if there is no single
        match.
        """
        with self._db.read() as tx:
            row = tx.execute(_BY_ID, {"job": job_id}).first()
            if row is not None:
                return job_of(row)
            # LIKE would ignore case in SQLite.
            begins = func.substr(jobs.c.id, 1, len(job_id)) == job_id
            near = tx.execute(select(jobs).where(begins).order_by(desc(jobs.c.created_at))).all()
            names = () if near and job_id else tx.scalars(select(jobs.c.name).distinct()).all()
        if len(near) == 1 and job_id:
            return job_of(near[0])
        if near and job_id:
            told = ", ".join(row.id for row in near[:5])
            raise UsageError(f"{job_id!r} matches {len(near)} jobs: {told}", hint="write more of the id")
        cure = meant(job_id, names) or "`orch status` lists the jobs"
        if job_id.endswith((".yaml", ".yml", ".jsonl")):
            cure = "name the job, not its file: `orch status` lists the jobs"
        raise UsageError(f"there is no job {job_id!r}", hint=cure)

    def find(self, job_id: JobId) -> Job | None:
        """Return the job with exactly this id, or None if it is gone."""
        with self._db.read() as tx:
            row = tx.execute(_BY_ID, {"job": job_id}).first()
        return None if row is None else job_of(row)

    def newest(self, limit: int | None = None, *, skip: int = 0, text: str = "") -> list[Job]:
        """Return jobs, the newest first, without the first `skip`. `text` must be part of the name or id."""
        query = select(jobs).order_by(desc(jobs.c.created_at), jobs.c.id).limit(limit).offset(skip)
        if text:
            query = query.where(or_(*(one.icontains(text, autoescape=True) for one in (jobs.c.name, jobs.c.id))))
        with self._db.read() as tx:
            return [job_of(row) for row in tx.execute(query)]

    def unfinished(self, home: str) -> list[Job]:
        """Return a home's jobs that have not ended, by deadline, then by age."""
        with self._db.read() as tx:
            return [job_of(row) for row in tx.execute(_UNFINISHED, {"home": home})]

    def homes(self, only: Collection[str] | None = None) -> frozenset[str]:
        """Return the ids of homes with jobs in this database. With `only`, only these jobs count."""
        query = select(jobs.c.home).distinct()
        if only is not None:
            query = query.where(jobs.c.id.in_(only))
        with self._db.read() as tx:
            return frozenset(tx.scalars(query))

    def follow(self, job: Job, moved: Job, identity: str) -> Job:
        """Give a job the file and config of `moved`, after the job's file was moved. Return the changed job."""
        with self._db.write() as tx:
            row = tx.execute(select(jobs.c.options).where(jobs.c.id == job.id).with_for_update()).one()
            options = {**row.options, "config": moved.options["config"]}
            facts = {"series": moved.series, "identity": identity, "source": moved.source}
            tx.execute(update(jobs).where(jobs.c.id == job.id).values(options=options, **facts))
        return self.get(job.id)

    def of_name(self, name: str) -> list[Job]:
        """Return the jobs with this name, the newest first, without rehearsals."""
        query = select(jobs).where(jobs.c.name == name).order_by(desc(jobs.c.created_at))
        with self._db.read() as tx:
            return [job for job in map(job_of, tx.execute(query)) if not job.options.get("dry_run")]

    def of_series(self, series: str) -> list[Job]:
        with self._db.read() as tx:
            return [job_of(row) for row in tx.execute(_OF_SERIES, {"series": series})]

    def tags(self, job_id: JobId) -> dict[str, str]:
        with self._db.read() as tx:
            rows = tx.execute(select(tags.c.key, tags.c.value).where(tags.c.job_id == job_id)).all()
        return {row.key: row.value for row in rows}

    def mark_built(self, job_id: JobId, now: datetime) -> None:
        """Mark the requests of the job as complete. Raises StateConflict if they already were."""
        self._db.before_naming_files()
        self._set(job_id, jobs.c.built_at.is_(None), built_at=now)

    def ignored(self, job_id: JobId, found: Mapping[str, Any]) -> None:
        """Store what a build found besides documents, such as ignored files."""
        self._set(job_id, jobs.c.built_at.is_(None), ignored=found)

    def revise(self, job_id: JobId, **terms: datetime | Decimal) -> None:
        """Change the `deadline_at` or `budget` of an unfinished job. Raises StateConflict if the job has finished."""
        self._set(job_id, jobs.c.finished_at.is_(None), **terms)

    def request_cancel(self, job_id: JobId, code: CancelCode, reason: str, now: datetime) -> bool:
        """Request the cancellation of a job. Return False if it was requested before, or if the job has ended."""
        try:
            condition = jobs.c.finished_at.is_(None) & jobs.c.cancel_requested_at.is_(None) & jobs.c.error.is_(None)
            self._set(job_id, condition, cancel_requested_at=now, cancel_code=code, cancel_reason=reason)
        except StateConflict:
            return False
        return True

    def finish(
        self, job_id: JobId, output_path: str, now: datetime, *, error: str | None = None, code: str | None = None
    ) -> None:
        """Record a job's end and its result file. `error` says why the rows could not be delivered."""
        values = {"finished_at": now, "output_path": output_path, "error": error, "error_code": code}
        self._db.before_naming_files()
        self._set(job_id, jobs.c.finished_at.is_(None), **values)

    def fail(self, job_id: JobId, error: str, code: str = JobFault.INTERNAL) -> None:
        """Record that the job as a whole cannot continue. `code` is a `JobFault` or an `OutputFault`."""
        self._set(job_id, jobs.c.finished_at.is_(None), error=error, error_code=code)

    def undelivered(self, home: str, codes: Sequence[str], since: datetime) -> list[Job]:
        """Return a home's jobs that ended since a time and whose delivery failed with any of these codes."""
        c = jobs.c
        query = (
            select(jobs)
            .where(c.home == home, c.finished_at >= since, c.error_code.in_(codes))
            .order_by(c.finished_at, c.id)
        )
        with self._db.read() as tx:
            return [job_of(row) for row in tx.execute(query)]

    def delivered(self, job_id: JobId, output_path: str) -> None:
        """Record that an undelivered job's rows are now delivered. Raises StateConflict for any other job."""
        over = jobs.c.finished_at.is_not(None) & jobs.c.error_code.is_not(None)
        self._set(job_id, over, output_path=output_path, error=None, error_code=None)

    def not_delivered(self, job_id: JobId, error: str, code: str) -> None:
        """Record why an undelivered job's rows still cannot be delivered. Raises StateConflict for any other job."""
        over = jobs.c.finished_at.is_not(None) & jobs.c.error_code.is_not(None)
        self._set(job_id, over, error=error, error_code=code)

    def reopen(self, job_id: JobId, **options: Any) -> None:
        """Reopen a finished job with more options, so that orch finishes it again. Raises StateConflict if it is
        open.
        """
        over = {"finished_at": None, "output_path": None, "error": None, "error_code": None}
        self.allow(job_id, **options)
        self._set(job_id, jobs.c.finished_at.is_not(None), **over)

    def allow(self, job_id: JobId, **options: Any) -> None:
        with self._db.write() as tx:
            row = tx.execute(select(jobs.c.options).where(jobs.c.id == job_id).with_for_update()).first()
            if row is not None and options:
                tx.execute(update(jobs).where(jobs.c.id == job_id).values(options={**row.options, **options}))

    def has_delivered(self, home: str, series: str, place: str) -> bool:
        """True if a run of a job file has delivered its rows to this place."""
        c = jobs.c
        query = select(c.id).where(c.series == series, c.home == home, c.output_path == place).limit(1)
        with self._db.read() as tx:
            return tx.execute(query).first() is not None

    def discard(self, job_id: JobId) -> bool:
        """Delete an unbuilt job. Returns False for a built job, because a daemon may already have sent its rows."""
        with self._db.write() as tx:
            return tx.execute(delete(jobs).where(jobs.c.id == job_id, jobs.c.built_at.is_(None))).rowcount == 1

    def _set(self, job_id: JobId, condition: Any, **values: Any) -> None:
        with self._db.write() as tx:
            if tx.execute(update(jobs).where(jobs.c.id == job_id, condition).values(**values)).rowcount != 1:
                raise StateConflict(f"job {job_id} is not in the expected state")

    def counts(self, job_ids: Sequence[JobId]) -> dict[JobId, Counts]:
        """Return each job's number of requests by state, and of accepted answers by mark, such as cut or repaired."""
        with self._db.asking() as ask:
            return job_figures.counts(ask, job_ids)

    def submitted(self, job_ids: Sequence[JobId]) -> frozenset[JobId]:
        """Return the jobs that have sent a batch, or are about to."""
        with self._db.asking() as ask:
            return job_figures.submitted(ask, job_ids)

    def note(
        self,
        job_id: JobId,
        kind: EventKind,
        reason: str,
        now: datetime,
        shard_id: ShardId | None = None,
        code: str | None = None,
    ) -> None:
        """Add an event to the job's log, unless the job was removed meanwhile."""
        values = {"job_id": job_id, "shard_id": shard_id, "at": now, "kind": kind, "code": code, "reason": reason}
        there = select(*(literal(value, events.c[name].type) for name, value in values.items()))
        with self._db.write() as tx:
            tx.execute(insert(events).from_select([*values], there.where(jobs.c.id == job_id)))

    def events(self, job_id: JobId) -> list[Event]:
        columns = (events.c.at, events.c.kind, events.c.reason, events.c.shard_id, events.c.code)
        query = select(*columns).where(events.c.job_id == job_id).order_by(events.c.id)
        with self._db.read() as tx:
            return [Event(*row) for row in tx.execute(query)]

    def saw_documents(self, series: str, seen: Iterable[SeenDocument], now: datetime) -> None:
        times = {"series": series, "first_seen_at": now, "last_seen_at": now}
        rows = [{**asdict(document), **times} for document in seen]
        if not rows:
            return
        add = self._db.upsert(documents)
        changed = {name: add.excluded[name] for name in rows[0].keys() - {"series", "key", "first_seen_at"}}
        with self._db.write() as tx:
            tx.execute(add.on_conflict_do_update(index_elements=["series", "key"], set_=changed), rows)

    def still_there(self, series: str, keys: Sequence[str], now: datetime) -> None:
        """Record that a build found these documents unchanged."""
        with self._db.write() as tx:
            bulk.change(tx, documents, ("last_seen_at",), ("series", "key"), ((now, series, key) for key in keys))

    def marks(self, series: str, keys: Sequence[str]) -> dict[str, FileMark]:
        """Return the stored facts about files, by key. Unknown files are left out."""
        query = _MARKS.where(documents.c.series == series)
        with self._db.read() as tx:
            found = tx.execute(bulk.each(query, documents.c.key, keys, tx.dialect)).all()
        return {key: FileMark(*rest) for key, *rest in found}

    def marks_in(self, series: str, file: str) -> dict[str, FileMark]:
        """Return the stored facts about the documents of a container's last reading, by key."""
        c = documents.c
        with self._db.read() as tx:
            query = _MARKS.where(c.series == series, c.file == file)
            return {key: FileMark(*rest) for key, *rest in tx.execute(query)}

    def of_table(self, series: str, file: str, stamp: str, first: int, limit: int) -> list[tuple[str, str | None]]:
        """Return keys and contents of a table's documents stored with `stamp`, up to `limit` rows from `first` on."""
        c = documents.c
        query = (
            select(c.key, c.content)
            .where(c.series == series, c.file == file, c.place.between(first, first + limit - 1), c.stamp == stamp)
            .order_by(c.place)
        )
        with self._db.read() as tx:
            return [(row.key, row.content) for row in tx.execute(query)]
