"""Requests in the store: recorded, carried over, settled once, released, retried, read for the merge."""

from __future__ import annotations

import threading
import tracemalloc
from decimal import Decimal

import pytest

from orchestrator.core.counts import Counts
from orchestrator.core.errors import InputError
from orchestrator.core.model import JobId, Outcome, Price, RequestState, Span, Usage
from orchestrator.core.shards import ShardState
from orchestrator.policy.sharding import WaitingRow
from orchestrator.store import Store
from orchestrator.store.failures import FailureReason
from orchestrator.store.records import CARRIED, InShard, Settled
from tests.support.stored import CHAT, NOW, added, avoided, failed, job, later, row, settle, sharded, succeeded

PENDING, SUCCEEDED, FAILED = RequestState.PENDING, RequestState.SUCCEEDED, RequestState.FAILED
CANCELLED, EXPIRED = RequestState.CANCELLED, RequestState.EXPIRED


def states(store: Store, job_id: str = "contracts-1") -> list[RequestState]:
    return [found.state for found in store.rows.finished(JobId(job_id))]


def test_rows_that_wait_come_by_endpoint_model_and_place(store: Store) -> None:
    store.jobs.add(job(), {})
    rows = [row(0, model="b"), row(1, model="a"), row(2, endpoint="/v1/embeddings"), row(3, model="a")]
    store.rows.add(JobId("contracts-1"), [(each, Span(0, each.seq + 5)) for each, _ in rows], {}, NOW)
    assert list(store.rows.waiting(JobId("contracts-1"))) == [
        WaitingRow(1, CHAT, "a", 6, tokens=2),
        WaitingRow(3, CHAT, "a", 8, tokens=2),
        WaitingRow(0, CHAT, "b", 5, tokens=2),
        WaitingRow(2, "/v1/embeddings", "m", 7, tokens=2),
    ]


def test_whether_rows_wait(store: Store) -> None:
    found = added(store)
    assert store.rows.has_waiting(found.id)
    sharded(store, found)
    assert not store.rows.has_waiting(found.id)
    assert not store.rows.has_waiting(JobId("other"))


def test_a_row_of_a_document_that_could_not_be_read_has_failed(store: Store) -> None:
    store.jobs.add(job(), {})
    broken = row(1, span=Span(0, 0), problem=("encrypted", "needs a password"))
    store.rows.add(JobId("contracts-1"), [row(0), broken], {}, NOW)
    assert [waiting.seq for waiting in store.rows.waiting(JobId("contracts-1"))] == [0]
    found = list(store.rows.finished(JobId("contracts-1")))[1]
    assert (found.state, found.error_code, found.error_message) == (FAILED, "encrypted", "needs a password")
    assert (found.result, found.cost) == (None, 0)


@pytest.mark.parametrize("where", ["in one call", "in two calls"])
def test_a_custom_id_twice_in_a_job_is_refused_and_nothing_is_kept_of_that_call(store: Store, where: str) -> None:
    found = added(store, 0)
    same = [row(0), row(1), row(2, custom_id="r0")]
    if where == "in two calls":
        store.rows.add(found.id, same[:2], {}, NOW)
    with pytest.raises(InputError, match="a custom_id occurs twice in the job"):
        store.rows.add(found.id, same if where == "in one call" else same[2:], {}, NOW)
    assert len(states(store)) == (0 if where == "in one call" else 2)


def test_two_jobs_may_have_the_same_custom_ids(store: Store) -> None:
    added(store, 2, "a-1")
    added(store, 2, "a-2")
    assert states(store, "a-2") == [PENDING, PENDING]
    assert store.known.known_ids(JobId("a-2"), ["r1", "r9"]) == {"r1"}
    store.rows.clear(JobId("a-2"))
    assert (len(states(store, "a-1")), len(states(store, "a-2"))) == (2, 0)


def test_a_settled_row_has_everything_that_the_merge_needs(store: Store) -> None:
    found = added(store, 2)
    batch = sharded(store, found)
    store.shards.note(batch, batch_id="batch_1")
    assert settle(store, batch, succeeded(1, "0.000000000001", span=Span(5_000_000_000, 9)), now=later(1)) == 1
    _, done = store.rows.finished(found.id)
    assert (done.seq, done.custom_id, done.document, done.task) == (1, "r1", "d1", "t")
    assert (done.state, done.attempt) == (SUCCEEDED, 0)
    assert done.result == (batch.id, "output", Span(5_000_000_000, 9))
    assert (done.answered_by, done.upstream, done.latency_ms) == ("tiny", "http://127.0.0.1:8000/v1", 12)
    assert (done.usage, done.cost) == (Usage(100, 40, 7), Decimal("0.000000000001"))
    assert (done.backend, done.batch_id, done.carried_from) == ("gpu", "batch_1", None)
    assert (done.error_code, done.error_message) == (None, None)


def test_settling_again_changes_nothing_and_books_nothing(store: Store) -> None:
    found = added(store)
    batch = sharded(store, found)
    assert settle(store, batch, succeeded(0, "1.5"), failed(1)) == 2
    before = list(store.rows.finished(found.id))
    assert settle(store, batch, succeeded(0, "9"), failed(1), now=later(1)) == 0
    assert list(store.rows.finished(found.id)) == before
    assert store.ledger.spent(found.id) == Decimal("1.5")
    assert settle(store, batch, succeeded(0, "9"), succeeded(2, "0.25")) == 1
    assert store.ledger.spent(found.id) == Decimal("1.75")
    assert settle(store, batch) == 0


def test_a_row_is_settled_by_its_own_shard_only(store: Store) -> None:
    found = added(store)
    first = sharded(store, found, 1)
    store.rows.release(first.id, count_attempt=True)
    second = sharded(store, found, 2)
    assert settle(store, first, succeeded(0, "3")) == 0
    assert states(store, found.id)[0] == PENDING
    assert settle(store, second, succeeded(0, "5")) == 1
    # Each batch's answer was paid for, and is booked once however often it is read.
    assert settle(store, first, succeeded(0, "3"), now=later(1)) == 0
    assert settle(store, second, succeeded(0, "5"), now=later(1)) == 0
    assert store.ledger.spent(found.id) == Decimal(8)


def test_an_answer_from_anywhere_ends_a_row_that_waits_in_another_shard(store: Store) -> None:
    found = added(store)
    first = sharded(store, found, 1)
    store.rows.release(first.id, count_attempt=True)
    second = sharded(store, found, 2)
    late = [Settled(*succeeded(0, "3"))]
    assert store.rows.settle(first.id, found.id, first.backend, late, later(0), anywhere=True) == 1
    assert states(store, found.id)[0] == SUCCEEDED
    # The second batch answers it as well: that is paid, and the row keeps the answer that it has.
    before = list(store.rows.finished(found.id))
    assert settle(store, second, succeeded(0, "5")) == 0
    assert list(store.rows.finished(found.id)) == before
    assert store.ledger.spent(found.id) == Decimal(8)


def test_a_row_of_another_job_with_the_same_place_is_left_alone(store: Store) -> None:
    one, two = added(store, 2, "a-1"), added(store, 2, "a-2")
    batch = sharded(store, one)
    sharded(store, two)
    settle(store, batch, succeeded(0))
    assert (states(store, "a-1"), states(store, "a-2")) == ([SUCCEEDED, PENDING], [PENDING, PENDING])


def test_two_connections_that_settle_at_once_book_each_row_once(store: Store, store_url: str) -> None:
    rows, price = 200, Decimal("0.000123456789")
    found = added(store, rows)
    batch = sharded(store, found)
    outcomes = [succeeded(seq, str(price)) for seq in range(rows)]
    barrier, settled, problems = threading.Barrier(4), [], []

    def work() -> None:
        try:
            with Store.open(store_url) as own:
                barrier.wait()
                for start in range(0, rows, 50):
                    settled.append(settle(own, batch, *outcomes[start : start + 50]))
        except Exception as error:  # noqa: BLE001  (told below)
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sum(settled) == rows
    assert store.ledger.spent(found.id) == rows * price
    assert [total.rows for total in store.ledger.totals("job")] == [rows]
    assert states(store) == [SUCCEEDED] * rows


def test_an_outcome_without_a_price_is_not_booked(store: Store) -> None:
    found = added(store)
    batch = sharded(store, found)
    settle(store, batch, failed(0), (succeeded(1)[0], Price(Decimal(0), "local: free, as the machine is idle")))
    # A row that was answered for nothing is in the ledger all the same: its tokens count.
    [total] = store.ledger.totals("job")
    assert (total.rows, total.cost, total.usage) == (1, 0, Usage(100, 40, 7))


def test_the_rows_of_a_shard_come_in_input_order(store: Store) -> None:
    found = added(store)
    batch = sharded(store, found)
    settle(store, batch, succeeded(1))
    assert list(store.rows.of_shard(batch.id)) == [
        InShard(0, "r0", "t", 0, Span(0, 99), PENDING),
        InShard(1, "r1", "t", 0, Span(100, 99), SUCCEEDED),
        InShard(2, "r2", "t", 0, Span(200, 99), PENDING),
    ]


@pytest.mark.parametrize(("count_attempt", "attempt"), [(True, 1), (False, 0)], ids=["counted", "not counted"])
def test_rows_without_outcome_are_released(store: Store, count_attempt: bool, attempt: int) -> None:
    found = added(store)
    batch = sharded(store, found)
    settle(store, batch, succeeded(1))
    assert store.rows.release(batch.id, count_attempt=count_attempt) == 2
    assert store.rows.release(batch.id, count_attempt=count_attempt) == 0
    assert [waiting.seq for waiting in store.rows.waiting(found.id)] == [0, 2]
    assert [each.attempt for each in store.rows.finished(found.id)] == [attempt, 0, attempt]
    # The row with an outcome stays in its shard: where it came from is known.
    assert [each.seq for each in store.rows.of_shard(batch.id)] == [1]


@pytest.mark.parametrize(
    ("state", "ended"),
    [("pending", True), ("cancelled", True), ("submitting", False), ("submitted", False), ("ended", False)],
)
def test_only_rows_that_no_backend_can_have_are_ended(store: Store, state: str, ended: bool) -> None:
    found = added(store)
    if state == "cancelled":
        store.shards.move(sharded(store, found, state=ShardState.PENDING), ShardState.CANCELLED)
    else:
        sharded(store, found, state=ShardState(state))
    store.rows.add(found.id, [row(9)], {}, NOW)
    number = store.rows.end_open(found.id, CANCELLED, "cancelled", "by the user", NOW)
    assert number == (4 if ended else 1)
    assert states(store) == ([CANCELLED] * 3 if ended else [PENDING] * 3) + [CANCELLED]
    of = ("d0", True) if ended else ("d9", False)
    assert store.failures.reasons(found.id) == [FailureReason("cancelled", "by the user", number, number, None, *of)]


def test_ending_leaves_outcomes_and_other_jobs_alone(store: Store) -> None:
    found = added(store, 2, "a-1")
    added(store, 2, "a-2")
    batch = sharded(store, found)
    settle(store, batch, succeeded(0))
    store.rows.release(batch.id, count_attempt=True)
    assert store.rows.end_open(found.id, EXPIRED, "batch_expired", "late", NOW) == 1
    assert (states(store, "a-1"), states(store, "a-2")) == ([SUCCEEDED, EXPIRED], [PENDING, PENDING])


def test_a_retry_takes_back_what_it_is_asked_to_and_keeps_what_was_paid(store: Store) -> None:
    found = added(store, 4)
    batch = sharded(store, found)
    bad = Outcome(1, FAILED, "output", Span(0, 5), Usage(9, 0, 9), "tiny", error_code="invalid_json")
    settle(store, batch, succeeded(0, "1"), (bad, Price(Decimal(2), "local")), failed(2))
    store.rows.release(batch.id, count_attempt=False)
    store.rows.end_open(found.id, CANCELLED, "cancelled", "x", NOW)
    assert store.rows.retry(found.id, [FAILED]) == 2
    assert states(store) == [SUCCEEDED, PENDING, PENDING, CANCELLED]
    rows = list(store.rows.finished(found.id))
    assert [(each.attempt, each.result, each.error_code) for each in rows[1:3]] == [(1, None, None)] * 2
    assert store.ledger.spent(found.id) == 3
    again = sharded(store, found, 2)
    assert settle(store, again, succeeded(1, "4"), succeeded(2, "8")) == 2
    assert store.ledger.spent(found.id) == 15
    assert states(store) == [SUCCEEDED] * 3 + [CANCELLED]


def test_a_retry_passes_over_rows_that_have_no_request(store: Store) -> None:
    store.jobs.add(job(), {})
    store.rows.add(JobId("contracts-1"), [row(0, span=Span(0, 0), problem=("empty", "x"))], {}, NOW)
    assert store.rows.retry(JobId("contracts-1"), [FAILED]) == 0
    assert states(store) == [FAILED]


def test_reasons_are_counted_most_first(store: Store) -> None:
    found = added(store, 6)
    batch = sharded(store, found)
    settle(store, batch, failed(0, "b", "y"), failed(1, "a"), failed(2, "b", "x"), failed(3, "b", "z"), succeeded(4))
    b, a = FailureReason("b", "y", 3, 3, None, "d0", True), FailureReason("a", "no", 1, 1, None, "d1")
    assert store.failures.reasons(found.id) == [b, a]
    assert store.failures.reasons(found.id, limit=1) == [b]


def test_carried_rows_have_the_earlier_answer_and_cost_nothing(store: Store) -> None:
    first = added(store, 3, "a-1", built_at=NOW)
    batch = sharded(store, first)
    settle(store, batch, succeeded(0, "2"), failed(1, "http_400", "too long"))
    known = store.known.earlier([first.id], {f"r{n}": f"f{n}" for n in (0, 1, 2, 9)})
    assert {name: (each.state, each.fingerprint, each.error_code) for name, each in known.items()} == {
        "r0": (SUCCEEDED, "f0", None),
        "r1": (FAILED, "f1", "http_400"),
    }
    second = job("a-2", built_at=NOW, created_at=later(24))
    store.jobs.add(second, {})
    store.rows.add(second.id, [row(0), row(1), row(2)], known, later(24))
    zero, one, two = store.rows.finished(second.id)
    assert (zero.state, zero.carried_from, zero.cost) == (SUCCEEDED, "a-1", 0)
    assert (zero.result, zero.backend, zero.usage) == ((batch.id, "output", Span(0, 9)), "gpu", Usage(100, 40, 7))
    assert (one.state, one.error_message, two.state, two.carried_from) == (FAILED, "too long", PENDING, None)
    assert store.rows.carried(second.id) == {SUCCEEDED: 1, FAILED: 1}
    assert store.ledger.booked(second.id).usage == Usage()
    assert store.ledger.booked(first.id).usage == Usage(100, 40, 7)
    assert (store.ledger.spent(first.id), store.ledger.spent(second.id)) == (2, 0)


def test_a_lookup_of_documents_that_changed_every_night_holds_no_more_after_many_nights(store: Store) -> None:
    rows, peaks, runs = 40, [], []
    for night in range(24):
        found = job(f"a-{night}", created_at=later(24 * night), built_at=later(24 * night))
        store.jobs.add(found, {})
        asked = [row(seq, fingerprint=f"f{seq}-{night}") for seq in range(rows)]
        store.rows.add(found.id, asked, {}, later(24 * night))
        settle(store, sharded(store, found), *(succeeded(seq) for seq in range(rows)))
        runs.append(found.id)
        wanted = {made.custom_id: made.fingerprint for made, _ in asked}
        tracemalloc.start()
        assert set(store.known.earlier(runs, wanted)) == set(wanted)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[-1] < 2 * peaks[1]


def test_the_newest_answer_of_the_runs_given_is_the_one_that_is_carried(store: Store) -> None:
    for number, cost in ((1, "1"), (2, "2"), (3, "3")):
        found = added(store, 1, f"a-{number}", created_at=later(number))
        settle(store, sharded(store, found), succeeded(0, cost, model=f"model-{number}"))
    runs = [JobId("a-1"), JobId("a-2")]
    known = store.known.earlier(runs, {"r0": "f0"})["r0"]
    assert (known.job_id, dict(zip(CARRIED, known.facts, strict=True))["answered_by"]) == ("a-2", "model-2")
    assert store.known.earlier(list(reversed(runs)), {"r0": "f0"})["r0"].job_id == "a-1"
    assert store.known.earlier([], {"r0": "f0"}) == {}
    assert store.known.earlier(runs, {}) == {}


def test_what_was_carried_is_carried_on_from_where_it_was_answered(store: Store) -> None:
    first = added(store, 1, "a-1")
    settle(store, sharded(store, first), succeeded(0))
    for number in (2, 3):
        runs = [JobId(f"a-{earlier}") for earlier in range(1, number)]
        store.jobs.add(job(f"a-{number}", created_at=later(number)), {})
        store.rows.add(JobId(f"a-{number}"), [row(0)], store.known.earlier(runs, {"r0": "f0"}), later(number))
    [third] = store.rows.finished(JobId("a-3"))
    assert third.carried_from == "a-1"
    assert third.result is not None


def test_a_carried_row_that_is_retried_is_the_jobs_own_again(store: Store) -> None:
    first = added(store, 1, "a-1")
    settle(store, sharded(store, first), failed(0, "http_400"))
    second = job("a-2")
    store.jobs.add(second, {})
    store.rows.add(second.id, [row(0)], store.known.earlier([first.id], {"r0": "f0"}), NOW)
    assert store.rows.retry(second.id, [FAILED]) == 1
    settle(store, sharded(store, second), succeeded(0, "5"))
    assert not store.rows.carried(second.id)
    assert store.ledger.booked(second.id).usage == Usage(100, 40, 7)
    assert store.ledger.spent(second.id) == 5


@pytest.mark.long
def test_more_rows_than_a_page_come_whole_and_in_order(store: Store) -> None:
    found = added(store, 0)
    for start in range(0, 11_000, 2_750):
        store.rows.add(found.id, [row(seq) for seq in range(start, start + 2_750)], {}, NOW)
    assert [each.seq for each in store.rows.waiting(found.id)] == list(range(11_000))
    batch = sharded(store, found)
    assert [each.seq for each in store.rows.of_shard(batch.id)] == list(range(11_000))
    assert [each.seq for each in store.rows.finished(found.id)] == list(range(11_000))
    assert store.jobs.counts([found.id])[found.id] == Counts(pending=11_000)


def test_a_reader_that_stops_halfway_does_not_hold_up_a_writer(store: Store) -> None:
    found = added(store)
    waiting = store.rows.waiting(found.id)
    assert next(waiting).seq == 0
    store.rows.clear(found.id)
    waiting.close()
    assert list(store.rows.waiting(found.id)) == []


def test_rows_that_are_freed_wait_again_without_blame(store: Store) -> None:
    found = added(store, 4)
    batch = sharded(store, found)
    settle(store, batch, succeeded(3))
    store.rows.free(batch, [0, 3], count_attempt=False)
    store.rows.free(batch, [1], count_attempt=True, avoid=("gpu",))
    assert avoided(store, found.id) == {(), ("gpu",)}
    assert [(each.seq, each.attempts) for each in store.rows.waiting(found.id)] == [(0, 0)]
    assert [(each.seq, each.attempts) for each in store.rows.waiting(found.id, ("gpu",))] == [(1, 1)]
    assert [each.seq for each in store.rows.of_shard(batch.id)] == [2, 3]


def test_what_may_have_been_paid_in_vain_is_booked_beside_the_row(store: Store) -> None:
    found = added(store, 1)
    batch = sharded(store, found)
    outcome, price = succeeded(0, "2", tier="flex", usage=Usage(100, 40, 7, 3, 10))
    settle(store, batch, (outcome, price, Price(Decimal(1), "uncertain: 1 x list", estimated=True)))
    [total] = store.ledger.totals("job")
    assert (total.cost, total.usage, total.estimated) == (Decimal(3), Usage(100, 40, 7, 3, 10), True)
    [row_] = store.rows.finished(found.id)
    assert (row_.cost, row_.usage) == (Decimal(2), Usage(100, 40, 7, 3, 10))
