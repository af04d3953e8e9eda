"""Which sets of fields models have answered, and the rows that are asked first, on both databases."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.core.model import JobId, Span
from orchestrator.core.shards import ShardState
from orchestrator.policy.sharding import Range
from orchestrator.store import Store
from tests.support.stored import CHAT, NOW, added, failed, job, later, row, settle, shard, sharded, succeeded

JOB = JobId("contracts-1")


def test_a_proof_is_of_a_backend_an_endpoint_and_a_model(store: Store) -> None:
    store.proofs.add("cloud", CHAT, "m", ["a b", "a c"], NOW)
    store.proofs.add("cloud", CHAT, "m", ["a b"], NOW + timedelta(days=1))
    store.proofs.add("cloud", CHAT, "m", [], NOW)
    assert store.proofs.answered("cloud", CHAT, "m") == {"a b", "a c"}
    for other in (("other", CHAT, "m"), ("cloud", "/v1/embeddings", "m"), ("cloud", CHAT, "n")):
        assert store.proofs.answered(*other) == frozenset()


def test_the_smallest_waiting_row_of_each_task_and_model(store: Store) -> None:
    store.jobs.add(job(), {})
    rows = [
        row(0, span=Span(0, 50)),
        row(1, span=Span(100, 40), max_output=7),
        row(2, span=Span(200, 40)),
        row(3, span=Span(300, 10), task="u"),
        row(4, span=Span(400, 20), model="n"),
        row(5, span=Span(500, 5)),
    ]
    store.rows.add(JOB, rows, {}, NOW)
    store.shards.add(shard(store.jobs.get(JOB), rows=1), Range(CHAT, "m", 5, 5, 1, 5))
    found = store.proofs.smallest_waiting(JOB, ())
    assert [(one.seq, one.model, one.task, one.span, one.rows) for one in found] == [
        (1, "m", "t", Span(100, 40), 3),
        (3, "m", "u", Span(300, 10), 1),
        (4, "n", "t", Span(400, 20), 1),
    ]
    assert [one.max_output for one in found] == [7, None, None]
    assert store.proofs.smallest_waiting(JOB, ("gpu",)) == []
    assert store.proofs.smallest_waiting(JOB, (), canary=True) == []


def test_the_first_waiting_rows(store: Store) -> None:
    added(store, 5)
    assert [one.seq for one in store.proofs.first_waiting(JOB, (), 3)] == [0, 1, 2]
    assert list(store.proofs.first_waiting(JOB, ("gpu",), 3)) == []


def test_an_answered_row_of_each_task_of_earlier_batches(store: Store) -> None:
    store.jobs.add(job(), {})
    store.rows.add(JOB, [row(seq, task="ab"[seq % 2]) for seq in range(6)], {}, NOW)
    batch = sharded(store, store.jobs.get(JOB), state=ShardState.ENDED)
    settle(store, batch, *(failed(seq) if seq == 0 else succeeded(seq) for seq in range(6)))
    assert store.proofs.earlier_answers("gpu", CHAT, "m") == []
    ended = store.shards.get(batch.id)
    store.shards.move(ended, ShardState.COLLECTED, collected_at=later(1), provider_completed=5)
    found = store.proofs.earlier_answers("gpu", CHAT, "m")
    assert sorted((one.seq, one.task, one.span) for one in found) == [
        (1, "b", Span(100, 99)),
        (2, "a", Span(200, 99)),
    ]
    assert store.proofs.earlier_answers("gpu", CHAT, "n") == []
    assert store.proofs.earlier_answers("other", CHAT, "m") == []
