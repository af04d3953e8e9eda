"""What telemetry reads of jobs and shards that are over."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from orchestrator.core.events import EventKind
from orchestrator.core.model import JobId, Usage
from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from orchestrator.store.telemetry import Spread
from tests.support.stored import NOW, added, failed, job, later, settle, sharded, succeeded

HOUR = timedelta(hours=1)


def test_jobs_by_when_they_ended(store: Store) -> None:
    for name in ("done-1", "old-1", "lost-1", "open-1"):
        added(store, job_id=name)
    store.jobs.add(job("theirs-1", home="other"), {})
    store.jobs.finish(JobId("done-1"), "/o", later(2))
    store.jobs.finish(JobId("theirs-1"), "/o", later(2))
    store.jobs.finish(JobId("old-1"), "/o", NOW - HOUR)
    store.jobs.fail(JobId("lost-1"), "gone")
    store.jobs.note(JobId("lost-1"), EventKind.FAILED, "gone", later(1))
    store.jobs.note(JobId("open-1"), EventKind.FAILED, "not this one's end", later(1))
    assert [(found.id, at) for found, at in store.telemetry.ended_jobs("home", NOW)] == [
        ("lost-1", later(1)),
        ("done-1", later(2)),
    ]


def test_what_a_shard_took(store: Store) -> None:
    """Rows between bounds, each with its own; sends that were not answered cost money and have no tokens."""
    of = sharded(store, added(store, rows=4), state=ShardState.ENDED)
    rows = [
        succeeded(0, "0.5", usage=Usage(4, 0, 1), latency_ms=10),
        succeeded(1, "0.25", usage=Usage(5, 0, 900), latency_ms=11),
        failed(2, "http_500", latency_ms=4000),
    ]
    settle(store, of, *rows)
    booked = store.telemetry.booked(of.id, (1, 4, 16))
    assert booked.cost == Decimal("0.75")
    assert booked.input_tokens == Spread((0, 1, 1, 0), 9, 4, 5)
    assert booked.output_tokens == Spread((1, 0, 0, 1), 901, 1, 900)
    assert store.telemetry.durations(of.id, (10, 20)) == {
        None: Spread((1, 1, 0), 21, 10, 11),
        "http_500": Spread((0, 0, 1), 4000, 4000, 4000),
    }


def test_the_rows_that_get_a_span(store: Store) -> None:
    """Those that failed, and each so many; not those without an outcome, and not more than are asked for."""
    of = sharded(store, added(store, rows=7), state=ShardState.ENDED)
    settle(store, of, *(succeeded(seq) for seq in range(5)), failed(5))
    found = store.telemetry.notable_rows
    assert [one.row.seq for one in found(of.id, None, 10)] == [5]
    assert [one.row.seq for one in found(of.id, 3, 10)] == [0, 3, 5]
    assert [one.row.seq for one in found(of.id, 1, 4)] == [0, 1, 2, 3]
    assert store.telemetry.never_sent(of.job_id, 10) == []
