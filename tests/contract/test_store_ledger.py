"""What was paid for: sums by job, day, model, backend and tag, exact to the picodollar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.core.model import BookedUsage, JobId, Price, Usage
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.stored import NOW, added, job, later, row, settle, sharded, succeeded

MIDNIGHT = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def paid(store: Store) -> Store:
    """Two jobs over midnight (UTC), of two teams, on two models."""
    one = job("a-1", built_at=NOW)
    two = job("b-2", built_at=NOW)
    store.jobs.add(one, {"team": "legal", "client": "x"})
    store.jobs.add(two, {"team": "sales"})
    store.jobs.add(job("c-3"), {"team": "idle"})
    for each in (one, two):
        store.rows.add(each.id, [row(seq) for seq in range(3)], {}, NOW)
    first, second = sharded(store, one), sharded(store, two)
    before, after = MIDNIGHT - timedelta(microseconds=1), MIDNIGHT
    settle(store, first, succeeded(0, "0.000000000001"), now=before)
    settle(store, first, succeeded(1, "0.1"), succeeded(2, "0.2", model="big"), now=after)
    settle(store, second, succeeded(0, "1000000.000000000001"), now=after)
    return store


def summed(totals: list[BookedUsage]) -> list[tuple[str, str, int, str]]:
    """By group and model: the day, by which totals are split as well, shows in the sums by day."""
    sums: dict[tuple[str, str], tuple[int, Decimal]] = {}
    for total in totals:
        rows, cost = sums.get((total.group, total.model), (0, Decimal(0)))
        sums[total.group, total.model] = (rows + total.rows, cost + total.cost)
    return [(*key, rows, f"{cost:f}") for key, (rows, cost) in sums.items()]


SUMS = {
    "job": [
        ("a-1", "big", 1, "0.200000000000"),
        ("a-1", "tiny", 2, "0.100000000001"),
        ("b-2", "tiny", 1, "1000000.000000000001"),
    ],
    "day": [
        ("2026-11-21", "tiny", 1, "0.000000000001"),
        ("2026-11-22", "big", 1, "0.200000000000"),
        ("2026-11-22", "tiny", 2, "1000000.100000000001"),
    ],
    "model": [("big", "big", 1, "0.200000000000"), ("tiny", "tiny", 3, "1000000.100000000002")],
    "backend": [("gpu", "big", 1, "0.200000000000"), ("gpu", "tiny", 3, "1000000.100000000002")],
    "task": [("t", "big", 1, "0.200000000000"), ("t", "tiny", 3, "1000000.100000000002")],
    "tag:team": [
        ("legal", "big", 1, "0.200000000000"),
        ("legal", "tiny", 2, "0.100000000001"),
        ("sales", "tiny", 1, "1000000.000000000001"),
    ],
    "tag:client": [
        ("", "tiny", 1, "1000000.000000000001"),
        ("x", "big", 1, "0.200000000000"),
        ("x", "tiny", 2, "0.100000000001"),
    ],
    "tag": [
        ("client=x", "big", 1, "0.200000000000"),
        ("client=x", "tiny", 2, "0.100000000001"),
        ("team=legal", "big", 1, "0.200000000000"),
        ("team=legal", "tiny", 2, "0.100000000001"),
        ("team=sales", "tiny", 1, "1000000.000000000001"),
    ],
}


@pytest.mark.parametrize(("by", "sums"), SUMS.items(), ids=SUMS.keys())
def test_sums_by_group_and_model_are_exact(paid: Store, by: str, sums: list[tuple[str, str, int, str]]) -> None:
    totals = paid.ledger.totals(by)
    assert sorted(summed(totals)) == sums
    assert all(total.usage == Usage(100 * total.rows, 40 * total.rows, 7 * total.rows) for total in totals)


def test_sums_of_one_job_or_since_a_time(paid: Store) -> None:
    assert {total.group for total in paid.ledger.totals("job", job_id="b-2")} == {"b-2"}
    assert sum(total.rows for total in paid.ledger.totals("job", since=MIDNIGHT)) == 3
    assert paid.ledger.totals("job", since=MIDNIGHT + timedelta(microseconds=1)) == []
    assert paid.ledger.totals("day", since=later(0), job_id="c-3") == []


def test_what_a_job_has_spent(paid: Store) -> None:
    spent = [paid.ledger.spent(JobId(name)) for name in ("a-1", "b-2", "c-3", "none")]
    assert spent == [Decimal("0.300000000001"), Decimal("1000000.000000000001"), 0, 0]
    assert all(isinstance(each, Decimal) for each in spent)


@pytest.mark.slow
def test_thousands_of_small_sums_lose_nothing(store: Store) -> None:
    found = added(store, 3000)
    settle(store, sharded(store, found), *[succeeded(seq, "0.000000000003") for seq in range(3000)])
    assert store.ledger.spent(found.id) == Decimal("0.000000009000")


def test_an_estimate_among_them_marks_the_sum(store: Store) -> None:
    found = added(store, 3)
    outcomes = [succeeded(0), succeeded(1, model="big"), succeeded(2)]
    guess = Price(Decimal("0.1"), "half the list price", estimated=True)
    settle(store, sharded(store, found), outcomes[0], outcomes[1], (outcomes[2][0], guess))
    assert {total.model: total.estimated for total in store.ledger.totals("job")} == {"tiny": True, "big": False}


def test_rows_whose_cost_leaves_something_out_are_counted(store: Store) -> None:
    found = added(store, 4)
    shard = sharded(store, found)
    short = Price(Decimal("0.1"), "a price without its searches", estimated=True, unpriced=True)
    outcomes = [succeeded(0), succeeded(1, model="big"), succeeded(2)]
    settle(store, shard, (outcomes[0][0], short), outcomes[1], (outcomes[2][0], short))
    store.ledger.book(shard, "unfinished", {3: short, 1: outcomes[1][1]}, NOW)
    totals = {total.model: total.unpriced for total in store.ledger.totals("job")}
    assert totals == {"tiny": 2, "big": 0, shard.model: 1}


def test_every_count_of_an_answer_is_booked_settled_and_summed(store: Store) -> None:
    found = added(store, 2)
    shard = sharded(store, found)
    usage = Usage(*range(1, 12))
    outcome, price = succeeded(0)
    settle(store, shard, (replace(outcome, usage=usage), price))
    store.ledger.book(shard, "unfinished", {1: price}, NOW, {1: usage})
    assert sum(total.usage.web_searches for total in store.ledger.totals("job")) == 22
    assert store.ledger.booked(found.id).usage.web_searches == 22
    assert next(store.rows.finished(found.id)).usage == usage


def test_an_answer_without_usage_is_booked_with_its_estimate_and_stays_unknown(store: Store) -> None:
    found = added(store, 1)
    outcome, price = succeeded(0)
    guess = Price(price.cost, "half the list price", estimated=True)
    row_ = Settled(replace(outcome, usage=Usage()), guess, used=Usage(50, 0, 7))
    shard = sharded(store, found)
    store.rows.settle(shard.id, found.id, shard.backend, [row_], NOW)
    [total] = store.ledger.totals("job")
    assert (total.usage, total.estimated) == (Usage(50, 0, 7), True)
    assert next(store.rows.finished(found.id)).usage == Usage()


def test_only_a_row_booked_by_its_length_is_guessed(store: Store) -> None:
    found = added(store, 4)
    shard = sharded(store, found)
    outcomes, (_, price) = [replace(succeeded(seq)[0], usage=Usage()) for seq in range(3)], succeeded(0)
    guess = Price(price.cost, "half the list price", estimated=True)
    by_time = Price(price.cost, "local: $1/h of upstream time")
    told = Settled(replace(outcomes[1], usage=Usage(50, 0, 7)), guess)
    rows = [Settled(outcomes[0], guess, used=Usage(50, 0, 7)), told, Settled(outcomes[2], by_time)]
    store.rows.settle(shard.id, found.id, shard.backend, rows, NOW)
    assert [row.is_guessed for row in store.rows.finished(found.id)] == [True, False, False, False]
    shown = [store.rows_by_document.at(found.id, seq) for seq in range(4)]
    assert [one is not None and one.row.is_guessed for one in shown] == [True, False, False, False]


def test_what_was_taken_back_is_booked_once_beside_what_is_settled_later(store: Store) -> None:
    found = added(store, 2)
    first = sharded(store, found)
    price = Price(Decimal("0.5"), "local: $1/h of upstream time")
    for _ in range(2):
        store.ledger.book(first, "rerouted", {0: price, 1: price}, NOW)
    store.ledger.book(first, "rerouted", {}, NOW)
    assert store.ledger.spent(found.id) == 1
    settle(store, first, succeeded(0, "2"))
    store.rows.release(first.id, count_attempt=True)
    second = sharded(store, found, 2)
    store.ledger.book(second, "rerouted", {1: price}, NOW)
    assert store.ledger.spent(found.id) == Decimal("3.5")


def test_sums_by_backend_and_tier_tell_what_may_not_be_billed(paid: Store) -> None:
    of = sharded(paid, added(paid, 2, "d-4"))
    uncertain = Settled(*succeeded(0, "0.5", tier="flex"), uncertain=Price(Decimal("0.25"), "guess", True))
    assert paid.rows.settle(of.id, of.job_id, of.backend, [uncertain], later(2)) == 1
    assert paid.ledger.by_tier(later(1))["gpu", "flex"] == (Decimal("0.75"), Decimal("0.25"))
    assert paid.ledger.by_tier(NOW - timedelta(days=1))["gpu", ""][0] == Decimal("1000000.300000000002")
    assert paid.ledger.by_tier(later(99)) == {}
