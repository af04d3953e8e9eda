"""Twins in the store: rows that are not sent, and end as the row does that is sent for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.core.counts import Counts
from orchestrator.core.model import Job, JobId, RequestState, Span, Usage
from orchestrator.core.shards import ShardState
from orchestrator.policy.sharding import pack
from orchestrator.store import Store
from tests.support.stored import NOW, avoided, failed, job, row, settle, shard, sharded, succeeded

PENDING, SUCCEEDED, FAILED = RequestState.PENDING, RequestState.SUCCEEDED, RequestState.FAILED
CANCELLED = RequestState.CANCELLED


def added(store: Store, bodies: str, job_id: str = "twins-1") -> Job:
    """A job with a row for each letter; the same letter is the same body."""
    new = job(job_id)
    store.jobs.add(new, {})
    rows = [row(seq, cache_key=f"k{body}") for seq, body in enumerate(bodies)]
    twins = {seq: bodies.index(body) for seq, body in enumerate(bodies) if bodies.index(body) != seq}
    store.rows.add(new.id, rows, {}, NOW, twins)
    return new


def states(store: Store, job_id: str = "twins-1") -> list[RequestState]:
    return [found.state for found in store.rows.finished(JobId(job_id))]


def test_only_the_first_of_the_same_requests_waits_for_a_shard(store: Store) -> None:
    of = added(store, "abaab")
    assert [waiting.seq for waiting in store.rows.waiting(of.id)] == [0, 1]
    assert [(work.rows, work.bytes) for work in store.sizes.open_work(of.id)] == [(2, 198)]
    batch = sharded(store, of)
    assert [found.seq for found in store.rows.of_shard(batch.id)] == [0, 1]
    assert not store.rows.has_waiting(of.id)
    assert avoided(store, of.id) == set()
    assert store.jobs.counts([of.id])[of.id] == Counts(pending=5)
    assert [found.carried_from for found in store.rows.finished(of.id)] == [None] * 5
    assert store.known.originals(of.id, ["ka", "kb", "kc"]) == {("ka", "m", "t"): 0, ("kb", "m", "t"): 1}


def test_twins_end_with_the_row_that_was_sent_and_cost_nothing(store: Store) -> None:
    of = added(store, "abaab")
    batch = sharded(store, of)
    assert settle(store, batch, succeeded(0, "2")) == 1
    assert states(store) == [SUCCEEDED, PENDING, SUCCEEDED, SUCCEEDED, PENDING]
    first, _, second, *_ = store.rows.finished(of.id)
    assert (second.custom_id, second.cost, second.carried_from) == ("r2", 0, of.id)
    assert (second.result, second.usage, second.answered_by) == (first.result, first.usage, first.answered_by)
    assert (first.cost, first.carried_from) == (2, None)
    assert store.ledger.spent(of.id) == 2
    assert store.ledger.booked(of.id).usage == Usage(100, 40, 7)
    assert store.sizes.output_lengths([of.id], "t", "v") == {7: 1}
    before = list(store.rows.finished(of.id))
    assert settle(store, batch, failed(0)) == 0
    assert list(store.rows.finished(of.id)) == before
    assert settle(store, batch, failed(1, "http_400", "too long")) == 1
    last = list(store.rows.finished(of.id))[-1]
    assert (last.state, last.error_code, last.error_message) == (FAILED, "http_400", "too long")


def test_rows_of_another_job_at_the_same_places_are_left_alone(store: Store) -> None:
    of, other = added(store, "aa"), added(store, "aa", "other-1")
    sharded(store, other)
    settle(store, sharded(store, of), succeeded(0))
    assert (states(store), states(store, other.id)) == ([SUCCEEDED] * 2, [PENDING] * 2)


@pytest.mark.parametrize("verb", ["free", "release", "dissolve"])
def test_a_row_that_goes_on_elsewhere_keeps_its_twins_waiting(store: Store, verb: str) -> None:
    of = added(store, "aba")
    batch = sharded(store, of, state=ShardState.PENDING if verb == "dissolve" else ShardState.SUBMITTED)
    if verb == "free":
        store.rows.free(batch, [0, 1], count_attempt=True)
    elif verb == "release":
        store.rows.release(batch.id, count_attempt=True)
    else:
        store.shards.dissolve(batch, "too large")
    assert states(store) == [PENDING] * 3
    again = sharded(store, of, 2)
    assert [found.seq for found in store.rows.of_shard(again.id)] == [0, 1]
    settle(store, again, succeeded(0), succeeded(1))
    assert states(store) == [SUCCEEDED] * 3


@pytest.mark.parametrize(("state", "ended"), [(None, True), ("pending", True), ("submitted", False)])
def test_twins_are_ended_with_the_row_that_is_sent_and_not_without_it(
    store: Store, state: str | None, ended: bool
) -> None:
    of = added(store, "aab")
    if state is not None:
        sharded(store, of, state=ShardState(state))
    assert store.rows.end_open(of.id, CANCELLED, "cancelled", "by the user", NOW) == (3 if ended else 0)
    assert states(store) == ([CANCELLED] if ended else [PENDING]) * 3
    assert store.rows.end_open(of.id, CANCELLED, "cancelled", "by the user", NOW) == 0


def test_rows_that_are_tried_again_are_sent_once_again(store: Store) -> None:
    of = added(store, "aba")
    settle(store, sharded(store, of), failed(0), succeeded(1))
    assert store.rows.retry(of.id, [FAILED]) == 2
    assert states(store) == [PENDING, SUCCEEDED, PENDING]
    again = sharded(store, of, 2)
    assert [found.seq for found in store.rows.of_shard(again.id)] == [0]
    settle(store, again, succeeded(0, "3"))
    assert states(store) == [SUCCEEDED] * 3
    assert (
        store.ledger.spent(of.id) == 3 + store.ledger.spent(JobId("none")) + list(store.rows.finished(of.id))[1].cost
    )


def test_a_twins_outcome_is_carried_over_like_any_other(store: Store) -> None:
    of = added(store, "aa")
    settle(store, sharded(store, of), succeeded(0))
    known = store.known.earlier([of.id], {"r1": "f1"})
    second = job("twins-2")
    store.jobs.add(second, {})
    store.rows.add(second.id, [row(0, custom_id="r1", fingerprint="f1")], known, NOW)
    [carried] = store.rows.finished(second.id)
    assert (carried.state, carried.carried_from) == (SUCCEEDED, of.id)
    assert carried.result == ("twins-1.001", "output", Span(0, 9))


ACTS = st.lists(
    st.tuples(st.sampled_from(["answer", "fail", "free", "release", "cancel", "retry"]), st.integers(0, 9)),
    max_size=12,
)
_NUMBER = iter(range(10**6))


@pytest.mark.long
@settings(max_examples=2 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("abc", min_size=1, max_size=9), st.integers(1, 3), ACTS)
def test_each_body_is_with_one_batch_at_a_time_and_every_row_ends_as_the_one_that_was_sent(
    store: Store, bodies: str, most: int, acts: Sequence[tuple[str, int]]
) -> None:
    of = added(store, bodies, f"twins-{next(_NUMBER)}")
    firsts = {bodies.index(body) for body in bodies}

    def check() -> None:
        rows = list(store.rows.finished(of.id))
        with_batches = [found.seq for one in store.shards.of_job(of.id) for found in store.rows.of_shard(one.id)]
        assert max(Counter(bodies[seq] for seq in with_batches).values(), default=1) == 1
        assert set(with_batches) <= firsts
        for seq, body in enumerate(bodies):
            first = rows[bodies.index(body)]
            assert (rows[seq].state, rows[seq].error_code, rows[seq].result) == (
                first.state, first.error_code, first.result,
            )  # fmt: skip
            assert seq in firsts or rows[seq].cost == 0

    def send() -> None:
        for found in list(pack(store.rows.waiting(of.id), max_rows=most, max_bytes=10**9)):
            number = store.shards.next_number(of.id)
            store.shards.add(shard(of, number, rows=found.rows, bytes=found.bytes), found)

    send()
    for act, place in [*acts, *(("answer", place) for place in range(10))]:
        check()
        there = store.shards.of_job(of.id)
        one = there[place % len(there)] if there else None
        held = [found.seq for found in store.rows.of_shard(one.id) if found.state is PENDING] if one else []
        match act:
            case "cancel":
                store.rows.end_open(of.id, CANCELLED, "cancelled", "x", NOW)
            case "retry":
                store.rows.retry(of.id, [FAILED, CANCELLED])
            case "release" if one is not None:
                store.rows.release(one.id, count_attempt=True)
            case "free" if one is not None:
                store.rows.free(one, held[:1], count_attempt=False)
            case "answer" | "fail" if one is not None:
                end = succeeded if act == "answer" else failed
                settle(store, one, *(end(seq) for seq in held[:2]))
        send()
    for one in store.shards.of_job(of.id):
        left = [found.seq for found in store.rows.of_shard(one.id)]
        settle(store, one, *(succeeded(seq) for seq in left))
    check()
    assert PENDING not in states(store, of.id)
