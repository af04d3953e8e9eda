"""Jobs, rows and shards for tests of the store, each by the few words that matter to a test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from orchestrator.core.clock import now
from orchestrator.core.model import Job, JobId, JobKind, Outcome, Price, RequestState, Row, Span, Usage
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.sharding import Range, pack
from orchestrator.reports import status
from orchestrator.reports.status import JobLine
from orchestrator.store import Store
from orchestrator.store.records import Settled

CHAT = "/v1/chat/completions"
NOW = datetime(2026, 11, 21, 20, 0, 0, 123456, tzinfo=UTC)


SPEC = {"name": "contracts", "documents": [{"path": "d"}], "tasks": [{"id": "t", "model": "m", "prompt": "?"}]}
"""A job file of which nothing matters."""


def later(hours: float) -> datetime:
    return NOW + timedelta(hours=hours)


def job(job_id: str = "contracts-1", **facts: Any) -> Job:
    given = {
        "home": "home", "series": "series", "identity": "identity", "name": "contracts", "kind": JobKind.DOCUMENTS,
        "source": "/job.yaml", "options": {}, "created_at": NOW,
    }  # fmt: skip
    given |= facts
    return Job(JobId(job_id), **{**given, "spec": given.get("spec", SPEC)})


def over(store: Store, *jobs: Job) -> list[JobLine]:
    """The lines of jobs of which no batch runs."""
    return status.lines(store, jobs, now(), lambda shard: Decimal(0))


def row(seq: int, *, span: Span | None = None, **facts: Any) -> tuple[Row, Span]:
    """A row and where its line lies: 99 bytes at its hundred, unless said otherwise."""
    given = {
        "custom_id": f"r{seq}", "document": f"d{seq}", "task": "t", "endpoint": CHAT, "model": "m",
        "fingerprint": f"f{seq}", "prompt_version": "v",
    }  # fmt: skip
    return Row(seq, **{**given, **facts}), span or Span(seq * 100, 99)


def added(store: Store, rows: int = 3, job_id: str = "contracts-1", **facts: Any) -> Job:
    """A job with rows that wait."""
    new = job(job_id, **facts)
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(seq) for seq in range(rows)], {}, NOW)
    return new


def shard(of: Job, number: int = 1, **facts: Any) -> Shard:
    given = {
        "backend": "gpu", "endpoint": CHAT, "model": "m", "state": ShardState.PENDING, "reason": "the only one",
        "rows": 3, "bytes": 300, "created_at": NOW,
    }  # fmt: skip
    return Shard(ShardId(f"{of.id}.{number:03d}"), of.id, number, **{**given, **facts})


def ranges(store: Store, of: Job, max_rows: int = 50_000) -> list[Range]:
    return list(pack(store.rows.waiting(of.id), max_rows=max_rows, max_bytes=10**9))


def sharded(store: Store, of: Job, number: int = 1, *, state: ShardState = ShardState.SUBMITTED) -> Shard:
    """A shard with every row that waits, moved to a state."""
    [found] = ranges(store, of)
    new = shard(of, number, rows=found.rows, bytes=found.bytes)
    store.shards.add(new, found)
    way = [ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED, ShardState.COLLECTED]
    for to in way[: way.index(state) + 1] if state in way else []:
        store.shards.move(store.shards.get(new.id), to)
    return store.shards.get(new.id)


def succeeded(seq: int, cost: str = "0.000001", **facts: Any) -> tuple[Outcome, Price]:
    given = {
        "kind": "output", "span": Span(seq * 10, 9), "usage": Usage(100, 40, 7), "model": "tiny",
        "upstream": "http://127.0.0.1:8000/v1", "latency_ms": 12,
    }  # fmt: skip
    outcome = Outcome(seq, RequestState.SUCCEEDED, **{**given, **facts})
    return outcome, Price(Decimal(cost), "local: $1/h of upstream time")


def failed(seq: int, code: str = "http_400", message: str = "no", **facts: Any) -> tuple[Outcome, None]:
    return Outcome(seq, RequestState.FAILED, error_code=code, error_message=message, **facts), None


def settle(store: Store, of: Shard, *outcomes: Any, now: datetime = NOW, anywhere: bool = False) -> int:
    rows = [Settled(*outcome) for outcome in outcomes]
    return store.rows.settle(of.id, of.job_id, of.backend, rows, now, anywhere=anywhere)


def avoided(store: Store, job_id: JobId) -> set[tuple[str, ...]]:
    """What rows that wait keep away from; nothing for rows that may go anywhere."""
    return {work.avoid for work in store.sizes.open_work(job_id) if work.shard_id is None}
