"""`advance(job)`: one idempotent step of a job through its stages. One file a stage:

    build    documents → requests
    submit   requests → shards → batches
    (here)   batches tracked
    collect  result files → outcomes
    merge    outcomes → one file in input order

Whatever happened before, calling it again goes on from what the store and the backends say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from orchestrator.backends import Backend, RemoteBatch
from orchestrator.errors import JobFilesError, RefusedError, StorageError
from orchestrator.home import Home
from orchestrator.jobspec import JobSpec
from orchestrator.model import (
    Counts,
    Job,
    JobKind,
    Price,
    RequestState,
    Shard,
    ShardState,
)
from orchestrator.pipeline import build, collect, merge, submit
from orchestrator.results import OutputCheck
from orchestrator.routing import Plan
from orchestrator.store import Store

# Between two looks at a batch and the last row that it still ends, no more than this passes.
REACTION_SECONDS = 2.0

Models = Mapping[str, str | dict[str, str]]


@dataclass(frozen=True, slots=True)
class Lane:
    """A backend as the pipeline uses it: the API, what a batch may hold, and the price of upstream seconds."""

    api: Backend
    max_rows: int
    max_bytes: int
    price: Callable[[float], Price]
    upstreams: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """Every backend by name, opened at its first use; and the choice among them for a job."""

    open: Callable[[str], Lane]
    route: Callable[[Job], Plan]
    models: Callable[[Job], Models]


class Pipeline:
    """Takes jobs of one home through their stages."""

    def __init__(self, store: Store, home: Home, lanes: Lanes, now: Callable[[], datetime]) -> None:
        self._store = store
        self._home = home
        self._lanes = lanes
        self._now = now

    def advance(self, job: Job) -> bool:
        """One step; True where something moved. Raises OrchError, and then the job stands where the store says."""
        if job.built_at is None:
            return self._build(job)
        if job.cancel_requested_at is not None:
            self._cancel(job)
        shards = self._store.shards.of_job(job.id)
        if self._stop_at_budget(job, shards):
            return True
        moved = False
        for shard in shards:
            moved |= self._advance_shard(job, shard)
        moved |= self._plan(job)
        shards = self._store.shards.of_job(job.id)
        moved |= self._stop_at_budget(job, shards)
        counts = self._store.jobs.counts([job.id])[job.id]
        if counts.pending == 0 and all(shard.state.is_final for shard in shards):
            self._finish(job, counts)
            moved = True
        return moved

    def _build(self, job: Job) -> bool:
        with build.claim(self._home, job) as mine:
            if not mine:
                return False
            current = self._store.jobs.find(job.id)
            if current is None or current.built_at is not None:
                return True  # whoever had it has just ended
            if job.options.get("dry_run"):
                build.discard(self._store, self._home, job)  # a kill cut it off; nobody asked for it to be run
                return True
            report = build.build(self._store, self._home, job, self._now())
            if build.same_as(self._store, job, report) is not None:
                build.discard(self._store, self._home, job)
                return True
            self._store.jobs.mark_built(job.id, self._now())
        self._note(job, "built", f"{report.requests:,} requests of {report.documents:,} documents")
        return True

    def _plan(self, job: Job) -> bool:
        if job.cancel_requested_at is not None or not self._store.rows.has_waiting(job.id):
            return False
        plan = self._lanes.route(job)
        if plan.route is None:
            reasons = "; ".join(f"{refused.backend}: {refused.reason}" for refused in plan.refused)
            raise RefusedError(f"no backend may run job {job.id}: {reasons or 'none is configured'}")
        now = self._now()
        if job.deadline_at is not None and job.deadline_at <= now and job.spec.get("on_late") == "expire":
            late = "the deadline passed before the row ran"
            return bool(self._store.rows.end_open(job.id, RequestState.EXPIRED, "batch_expired", late, now))
        lane = self._lanes.open(plan.route.backend)
        added = submit.plan_shards(
            self._store,
            job,
            backend=plan.route.backend,
            reason=plan.route.reason,
            max_rows=lane.max_rows,
            max_bytes=lane.max_bytes,
            now=self._now(),
        )
        for shard in added:
            self._note(job, "routed", f"{shard.rows:,} rows to {shard.backend}: {shard.reason}", shard)
        return bool(added)

    def _advance_shard(self, job: Job, shard: Shard) -> bool:
        store = self._store
        match shard.state:
            case ShardState.PENDING:
                api, models = self._lane(shard).api, self._lanes.models(job)
                submit.submit(store, self._home, job, shard, api, models, self._now)
                self._note(job, "submitted", f"batch of {shard.rows:,} rows created", shard)
            case ShardState.SUBMITTING:
                said = submit.recover(store, shard, self._lane(shard).api, self._now())
                self._note(job, "recovered", said, shard)
            case ShardState.SUBMITTED:
                return self._track(job, shard)
            case ShardState.ENDED:
                self._collect(job, shard)
            case ShardState.COLLECTED | ShardState.CANCELLED:
                return False
        return True

    def _lane(self, shard: Shard) -> Lane:
        return self._lanes.open(shard.backend)

    def _track(self, job: Job, shard: Shard) -> bool:
        assert shard.batch_id is not None
        api = self._lane(shard).api
        batch = api.retrieve(shard.batch_id)
        facts = _facts(batch)
        # A batch that is over is told without its seconds: what was seen last stands until its rows are booked.
        facts["provider_seconds"] = max(batch.upstream_seconds, shard.provider_seconds)
        if batch.status.is_final:
            files = {"output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id}
            self._store.shards.move(shard, ShardState.ENDED, ended_at=self._now(), **facts, **files)
            self._note(job, "ended", f"the batch is {batch.status}", shard)
            return True
        if job.cancel_requested_at is not None and batch.status != "cancelling":
            api.cancel(shard.batch_id)
        if any(getattr(shard, name) != value for name, value in facts.items()):
            self._store.shards.note(shard, **facts)
        return False

    def _collect(self, job: Job, shard: Shard) -> None:
        assert shard.batch_id is not None
        lane = self._lane(shard)
        refused = shard.provider_status == "failed"
        problems = lane.api.retrieve(shard.batch_id).problems if refused else ()
        tally = collect.collect(
            self._store, self._home, job, shard, lane.api, checks_of(job), lane.price, problems, self._now()
        )
        self._note(job, "collected", str(tally), shard)

    def _cancel(self, job: Job) -> None:
        """Rows that no backend holds end here; batches are asked to end when they are tracked."""
        for shard in self._store.shards.of_job(job.id):
            if shard.state is ShardState.PENDING:
                self._store.shards.move(shard, ShardState.CANCELLED)
        reason = job.cancel_reason or "the job was cancelled"
        code = "budget_exhausted" if reason.startswith("budget") else "cancelled"
        self._store.rows.end_open(job.id, RequestState.CANCELLED, code, reason, self._now())

    def _stop_at_budget(self, job: Job, shards: list[Shard]) -> bool:
        """A hard cap: a job is stopped while what its upstreams cost until they have stopped still fits."""
        if job.budget is None or job.cancel_requested_at is not None:
            return False
        ahead_of = (ShardState.PENDING, ShardState.SUBMITTING, ShardState.SUBMITTED)
        lanes = {shard.backend: self._lane(shard) for shard in shards if shard.state in ahead_of}
        unbooked = [shard for shard in shards if shard.state in (ShardState.SUBMITTED, ShardState.ENDED)]
        spent = self._store.ledger.spent(job.id)
        spent += sum((self._lane(shard).price(shard.provider_seconds).cost for shard in unbooked), Decimal(0))
        ahead = sum((lane.price(REACTION_SECONDS * lane.upstreams).cost for lane in lanes.values()), Decimal(0))
        stop = bool(ahead) and spent + ahead >= job.budget
        if stop:
            reason = f"budget of ${job.budget:f} reached: ${spent:.4f} spent, stopping costs up to ${ahead:.4f}"
            self._store.jobs.request_cancel(job.id, reason, self._now())
            self._note(job, "stopped", reason)
        return stop

    def _finish(self, job: Job, counts: Counts) -> None:
        spec_output = job.spec.get("output")
        style = "batch" if job.kind is JobKind.BATCH else "jsonl"
        path = self._home.merged(job.id, style)
        _write(path, merged_lines(self._store, self._home, job, style=style))
        if spec_output:
            path = Path(job.source).parent / str(spec_output["path"])
            _write(path, merged_lines(self._store, self._home, job, style=str(spec_output["format"])))
        self._store.jobs.finish(job.id, str(path), self._now())
        self._note(job, "finished", f"{counts.succeeded:,} of {counts.total:,} rows succeeded; merged into {path}")

    def _note(self, job: Job, kind: str, reason: str, shard: Shard | None = None) -> None:
        self._store.jobs.note(job.id, kind, reason, self._now(), shard.id if shard else None)


def merged_lines(store: Store, home: Home, job: Job, *, style: str) -> Iterator[bytes]:
    """The merged rows of a job, in input order; rows without outcome are told as pending."""
    return merge.lines(home.results, store.rows.finished(job.id), checks_of(job), style=style)


def _write(path: Path, lines: Iterator[bytes]) -> None:
    try:
        merge.write(path, lines)
    except StorageError as error:
        raise JobFilesError(error.message, hint=error.hint) from error


def _facts(batch: RemoteBatch) -> dict[str, object]:
    return {
        "provider_status": batch.status,
        "provider_completed": batch.completed,
        "provider_failed": batch.failed,
        "provider_input_tokens": batch.input_tokens,
        "provider_output_tokens": batch.output_tokens,
    }


def checks_of(job: Job) -> Mapping[str, OutputCheck]:
    """What the answers to each task of a job must be; a ready batch file asks for nothing."""
    return {} if job.kind is JobKind.BATCH else _checks(SpecKey(job))


class SpecKey:
    """A job's spec as a cache key: schemas are compiled once a job."""

    def __init__(self, job: Job) -> None:
        self.id = job.id
        self.spec = job.spec

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecKey) and other.id == self.id


@lru_cache(maxsize=64)
def _checks(key: SpecKey) -> Mapping[str, OutputCheck]:
    spec = JobSpec.model_validate(key.spec)
    return {task.id: OutputCheck(task.output_schema) for task in spec.tasks}
