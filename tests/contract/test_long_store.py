"""Long documents in the store: the row of a document's answer waits until each of its parts has an outcome."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.core.model import Job, JobId, RequestState, Span
from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from orchestrator.store.reduce_rows import UnaskedRow, Unmade
from tests.support.stored import NOW, failed, job, later, row, settle, sharded, succeeded

PENDING, SUCCEEDED, FAILED = RequestState.PENDING, RequestState.SUCCEEDED, RequestState.FAILED
CANCELLED, EXPIRED = RequestState.CANCELLED, RequestState.EXPIRED
NO_LINE = Span(0, 0)


def added(store: Store, job_id: str = "long-1") -> Job:
    """A job with a document in two parts (0, and 1 and 2), one at once (3), one in three (4, and 5 to 7)."""
    new = job(job_id)
    store.jobs.add(new, {})
    rows = [
        row(0, span=NO_LINE, document="a", max_output=50, parts=2),
        *(row(seq, document="a", part=seq, parts=2) for seq in (1, 2)),
        row(3, document="b"),
        row(4, span=NO_LINE, document="c", parts=3),
        *(row(seq, document="c", part=seq - 4, parts=3) for seq in (5, 6, 7)),
    ]
    store.rows.add(new.id, rows, {}, NOW)
    return new


def waiting(store: Store, of: Job) -> list[int]:
    return [found.seq for found in store.rows.waiting(of.id)]


def states(store: Store, of: Job) -> list[RequestState]:
    return [found.state for found in store.rows.finished(of.id)]


def test_a_row_without_a_line_is_neither_sent_nor_counted_as_work(store: Store) -> None:
    of = added(store)
    assert waiting(store, of) == [1, 2, 3, 5, 6, 7]
    assert [work.rows for work in store.sizes.open_work(of.id)] == [6]
    assert store.canary.mark(of.id, 5) == 5
    batch = sharded(store, of)
    assert not store.rows.has_waiting(of.id)
    assert store.jobs.counts([of.id])[of.id].pending == 8
    assert [found.seq for found in store.rows.of_shard(batch.id)] == [1, 2, 3, 5, 6, 7]
    assert [found.stage for found in store.rows.finished(of.id)] == [
        "reduce", "map", "map", None, "reduce", "map", "map", "map",
    ]  # fmt: skip
    assert [(found.part, found.parts) for found in store.rows.finished(of.id)][4:6] == [(None, 3), (1, 3)]


def test_it_is_complete_when_each_of_its_own_parts_has_an_outcome(store: Store) -> None:
    of, other = added(store), added(store, "other-1")
    batch = sharded(store, of)
    sharded(store, other)
    assert store.stages.complete(of.id, 10) == []
    settle(store, batch, succeeded(1), succeeded(5), succeeded(6), succeeded(3))
    assert store.stages.complete(of.id, 10) == []
    settle(store, batch, failed(2))
    assert store.stages.complete(of.id, 10) == [Unmade(0, "r0", "t", 2, 50)]
    settle(store, batch, succeeded(7))
    assert [found.seq for found in store.stages.complete(of.id, 10)] == [0, 4]
    assert [found.seq for found in store.stages.complete(of.id, 1)] == [0]
    [first, second] = store.stages.complete(of.id, 10)
    assert [(found.part, found.state) for found in store.stages.parts(of.id, first)] == [(1, SUCCEEDED), (2, FAILED)]
    assert [found.part for found in store.stages.parts(of.id, second)] == [1, 2, 3]
    assert [found.backend for found in store.stages.parts(of.id, second)] == ["gpu"] * 3
    assert store.stages.complete(other.id, 10) == []


def test_then_it_has_a_line_or_an_end_once(store: Store) -> None:
    of, other = added(store), added(store, "other-1")
    batch = sharded(store, of)
    settle(store, batch, succeeded(1), failed(2), succeeded(5), succeeded(6), succeeded(7))
    fault = UnaskedRow(0, FAILED, "part_failed", "part 2 of 2 failed")
    assert store.stages.made(of.id, {4: Span(900, 77)}, [fault], later(1)) == 2
    assert store.stages.made(of.id, {4: Span(1000, 78), 0: Span(1, 1)}, [fault], later(2)) == 0
    assert store.stages.made(of.id, {}, [], later(2)) == 0
    assert waiting(store, of) == [4]
    assert store.stages.complete(of.id, 10) == []
    first, *_ = store.rows.finished(of.id)
    assert (first.state, first.error_code, first.error_message) == (FAILED, "part_failed", "part 2 of 2 failed")
    assert first.settled_at == later(1)
    [work] = [work for work in store.sizes.open_work(of.id) if work.shard_id is None]
    assert (work.rows, work.bytes) == (1, 77)
    second = sharded(store, of, 2)
    assert [(found.seq, found.span) for found in store.rows.of_shard(second.id)] == [(4, Span(900, 77))]
    assert states(store, other) == [PENDING] * 8


@pytest.mark.parametrize("state", [CANCELLED, EXPIRED])
def test_a_job_that_ends_early_ends_it_whatever_its_parts_do(store: Store, state: RequestState) -> None:
    of = added(store)
    batch = sharded(store, of)
    assert store.rows.end_open(of.id, state, "why", "because", NOW) == 2
    assert states(store, of) == [state, PENDING, PENDING, PENDING, state, PENDING, PENDING, PENDING]
    settle(store, batch, *(succeeded(seq) for seq in (1, 2, 3, 5, 6, 7)))
    assert store.stages.complete(of.id, 10) == []


def test_it_is_tried_again_with_the_part_that_failed(store: Store) -> None:
    of = added(store)
    batch = sharded(store, of)
    settle(store, batch, succeeded(1), failed(2), *(succeeded(seq) for seq in (3, 5, 6, 7)))
    store.stages.made(of.id, {4: Span(900, 77)}, [UnaskedRow(0, FAILED, "part_failed", "part 2")], NOW)
    assert store.rows.retry(of.id, [FAILED]) == 3
    assert waiting(store, of) == [2, 4]
    assert store.stages.complete(of.id, 10) == []
    settle(store, sharded(store, of, 2, state=ShardState.SUBMITTED), succeeded(2), failed(4))
    assert [found.seq for found in store.stages.complete(of.id, 10)] == [0]
    # A row that has its line is sent again as it is.
    assert store.rows.retry(of.id, [FAILED]) == 2
    assert waiting(store, of) == [4]


def test_two_runs_are_compared_by_their_documents_and_not_by_parts(store: Store) -> None:
    before = added(store)
    after = job("long-2")
    store.jobs.add(after, {})
    rows = [
        row(0, span=NO_LINE, document="a", fingerprint="new", parts=3),
        *(row(seq, document="a", custom_id=name, part=seq, parts=3) for seq, name in enumerate(["x", "r2", "y"], 1)),
    ]
    store.rows.add(after.id, rows, {}, NOW)
    store.stages.made(after.id, {}, [UnaskedRow(0, FAILED, "part_failed", "part 1")], NOW)
    [found] = store.comparisons.documents(before.id, after.id)
    assert (found.rows, found.known, found.changed, found.failed, found.unreadable) == (1, 1, 1, 1, 0)
    assert list(store.comparisons.only_in(after.id, before.id)) == []
    assert [asked.custom_id for asked in store.comparisons.only_in(before.id, after.id)] == ["r3", "r4"]
    assert list(store.comparisons.removed_documents(before.id, after.id)) == ["b", "c"]
    batch = sharded(store, before)
    settle(store, batch, succeeded(1), failed(2))
    settle(store, sharded(store, after), succeeded(2))
    assert list(store.comparisons.moved(before.id, after.id)) == []
    assert store.ledger.spent(JobId("long-2")) == Decimal("0.000001")
