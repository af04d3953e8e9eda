"""What a cost report is made of: what was wasted, how many documents, and that ledger and rows say the same."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import astuple, replace

from orchestrator.core.model import BookedUsage, Job, Price, RequestState, Usage
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.sharding import pack
from orchestrator.reports.status import detail
from orchestrator.store import Store
from tests.support.stored import NOW, added, failed, job, row, settle, shard, sharded, succeeded

GROUPS = ("job", "day", "task", "model", "backend", "tag:team")
HALF = Price(Decimal("0.5"), "uncertain: 1 x list", estimated=True)


def wasted(store: Store, by: str = "job") -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for total in store.ledger.totals(by):
        found[total.group] = found.get(total.group, Decimal(0)) + total.wasted
    return found


def test_an_answer_that_is_used_is_no_waste(store: Store) -> None:
    found = added(store, 2)
    settle(store, sharded(store, found), succeeded(0, "1"), succeeded(1, "2"))
    assert wasted(store) == {found.id: 0}


def test_a_row_that_failed_was_paid_in_vain(store: Store) -> None:
    found = added(store, 2)
    outcome, price = succeeded(0, "1")
    settle(store, sharded(store, found), (replace(outcome, state=RequestState.FAILED), price), succeeded(1, "2"))
    assert wasted(store) == {found.id: 1}


def test_of_a_row_paid_twice_the_first_was_in_vain(store: Store) -> None:
    found = added(store, 1)
    outcome, price = succeeded(0, "1")
    settle(store, sharded(store, found), (replace(outcome, state=RequestState.FAILED), price))
    store.rows.retry(found.id, [RequestState.FAILED])
    assert wasted(store) == {found.id: 1}, "so it is while the row waits"
    settle(store, sharded(store, found, 2), succeeded(0, "2"))
    assert wasted(store) == {found.id: 1}
    assert store.ledger.spent(found.id) == 3


def test_time_taken_back_and_sends_without_an_answer_are_waste(store: Store) -> None:
    found = added(store, 2)
    first = sharded(store, found)
    outcome, price = succeeded(0, "1")
    settle(store, first, (outcome, price, HALF))
    store.ledger.book(first, "rerouted", {1: Price(Decimal("0.25"), "local")}, NOW)
    [total] = [each for each in store.ledger.totals("job") if each.model == "tiny"]
    assert (total.wasted, total.uncertain, total.cost) == (Decimal("0.5"), Decimal("0.5"), Decimal("1.5"))
    assert wasted(store) == {found.id: Decimal("0.75")}


def test_documents_are_counted_once_a_job_whatever_their_tasks(store: Store) -> None:
    one, two = job("a-1", built_at=NOW), job("b-2", built_at=NOW)
    for each, team in ((one, "legal"), (two, "sales")):
        store.jobs.add(each, {"team": team, "client": "x"})
        rows = [row(seq, document=f"d{seq // 2}", task="xy"[seq % 2]) for seq in range(4)]
        store.rows.add(each.id, rows, {}, NOW)
    settle(store, sharded(store, one), *[succeeded(seq) for seq in range(4)])
    settle(store, sharded(store, two), succeeded(0), now=NOW + timedelta(days=1))
    count = store.ledger.documents
    assert count("job") == {"a-1": 2, "b-2": 1, None: 3}
    assert count("task") == {"x": 3, "y": 2, None: 3}
    assert count("day") == {"2026-11-21": 2, "2026-11-22": 1, None: 3}
    assert count("tag:team") == {"legal": 2, "sales": 1, None: 3}
    assert count("tag") == {"client=x": 3, "team=legal": 2, "team=sales": 1, None: 3}
    assert count("backend", since=NOW + timedelta(hours=1)) == {"gpu": 1, None: 1}
    assert count("model", job_id="a-1") == {"tiny": 2, None: 2}
    assert count("job", job_id="none") == {None: 0}


def test_totals_are_split_by_what_a_list_price_takes(store: Store) -> None:
    found = added(store, 3)
    batch = sharded(store, found)
    settle(store, batch, succeeded(0), succeeded(1, model="big"))
    settle(store, batch, succeeded(2), now=NOW + timedelta(days=1))
    assert [(total.backend, total.model, total.day) for total in store.ledger.totals("job")] == [
        ("gpu", "big", date(2026, 11, 21)),
        ("gpu", "tiny", date(2026, 11, 21)),
        ("gpu", "tiny", date(2026, 11, 22)),
    ]


def test_list_prices_that_were_booked_are_summed_apart_from_rows_without(store: Store) -> None:
    found = added(store, 4)
    batch = sharded(store, found)
    cheap = [(outcome, replace(price, listed=Decimal("0.25"))) for outcome, price in (succeeded(0), succeeded(1))]
    settle(store, batch, *cheap, succeeded(2))
    unfinished = {3: replace(HALF, listed=Decimal(8))}
    store.ledger.book(batch, "unfinished", unfinished, NOW, {3: Usage(1, 0, 1)})
    store.ledger.book(batch, "unmatched", {2: replace(HALF, listed=Decimal(8))}, NOW)
    sums = {(total.model, total.listed): total.rows for total in store.ledger.totals("backend")}
    assert sums == {
        ("tiny", Decimal("0.5")): 2,
        ("tiny", None): 1,
        (batch.model, Decimal(8)): 1,
        (batch.model, None): 1,
    }


def test_a_job_without_tags_is_in_the_report_by_tag(store: Store) -> None:
    settle(store, sharded(store, added(store, 1)), succeeded(0, "2"))
    assert [(total.group, total.cost) for total in store.ledger.totals("tag")] == [("", 2)]


def _shard(store: Store, of: Job, number: int, backend: str) -> Shard:
    [found] = pack(store.rows.waiting(of.id), max_rows=1000, max_bytes=10**9)
    new = shard(of, number, rows=found.rows, bytes=found.bytes, backend=backend)
    store.shards.add(new, found)
    return store.shards.get(ShardId(new.id))


def _night(store: Store, chance: random.Random) -> list[Job]:
    """Jobs whose rows are answered, fail, are sent without an answer, are taken back, and are retried."""
    jobs = []
    for number in range(3):
        tags = {"team": chance.choice(["legal", "sales"])} if number else {}
        new = job(f"job-{number}", built_at=NOW)
        jobs.append(new)
        store.jobs.add(new, tags)
        store.rows.add(new.id, [row(seq, task=chance.choice("xy")) for seq in range(12)], {}, NOW)
        for turn in (1, 2, 3):
            at = NOW + timedelta(hours=2 * turn)
            batch = _shard(store, new, turn, chance.choice(["gpu", "openai"]))
            waiting = [each.seq for each in store.rows.of_shard(batch.id) if each.state is RequestState.PENDING]
            settle(store, batch, *[_outcome(seq, chance) for seq in waiting if chance.random() < 0.7], now=at)
            lost = [seq for seq in waiting if chance.random() < 0.2]
            store.ledger.book(batch, "rerouted", {seq: Price(Decimal(seq), "local") for seq in lost}, at)
            store.rows.release(batch.id, count_attempt=True)
            if turn < 3:
                store.rows.retry(new.id, [RequestState.FAILED])
    return jobs


def _outcome(seq: int, chance: random.Random) -> tuple[object, ...]:
    usage = Usage(chance.randint(10, 999), chance.randint(0, 9), chance.randint(1, 99), chance.randint(0, 1), 1)
    outcome, price = succeeded(seq, f"0.{chance.randint(1, 10**12):012}", usage=usage, model=chance.choice("ab"))
    if chance.random() < 0.3:
        return failed(seq, usage=usage)[0], price
    return (outcome, price, HALF) if chance.random() < 0.3 else (outcome, price)


def added_up(usages: Iterable[Usage]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*map(astuple, usages), strict=True))


def summed(totals: list[BookedUsage]) -> tuple[object, ...]:
    sums = [sum(getattr(each, name) for each in totals) for name in ("rows", "cost", "uncertain", "wasted")]
    return (*sums, added_up(each.usage for each in totals))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_grouping_sums_to_the_ledger_and_the_ledger_to_the_rows(store: Store, seed: int) -> None:
    jobs = _night(store, random.Random(seed))
    by_job = store.ledger.totals("job")
    assert sum(total.cost for total in by_job) == sum(store.ledger.spent(each.id) for each in jobs) > 0
    assert all(summed(store.ledger.totals(by)) == summed(by_job) for by in GROUPS)

    rows = [each for of in jobs for each in store.rows.finished(of.id)]
    good = [each for each in rows if each.state is RequestState.SUCCEEDED]
    used = sum(total.cost - total.wasted for total in by_job)
    assert used == sum(each.cost for each in good) > 0, "what is not wasted paid for the answers that we hold"
    assert sum(total.wasted for total in by_job) > sum(total.uncertain for total in by_job) > 0


def test_without_retries_the_tokens_of_the_ledger_are_those_of_the_rows(store: Store) -> None:
    chance = random.Random(7)
    found = added(store, 40)
    settle(store, sharded(store, found), *[_outcome(seq, chance) for seq in range(40)])
    totals = store.ledger.totals("task", job_id=found.id)
    assert added_up(total.usage for total in totals) == added_up(row.usage for row in store.rows.finished(found.id))
    assert sum(total.rows for total in totals) == 40


def test_tokens_of_a_batch_are_told_until_they_are_booked_and_those_of_a_retry_beside_them(store: Store) -> None:
    found = added(store, 2)
    batch = sharded(store, found)
    store.shards.note(batch, provider_input_tokens=200, provider_output_tokens=14)

    def told() -> tuple[int, int]:
        usage = detail(store, store.jobs.get(found.id), NOW, lambda shard: Decimal(0)).usage
        return usage.input_tokens, usage.output_tokens

    assert told() == (200, 14)
    store.shards.move(store.shards.get(batch.id), ShardState.ENDED)
    assert told() == (200, 14)
    settle(store, batch, succeeded(0))
    assert told() == (200, 14)
    outcome, price = succeeded(1)
    settle(store, batch, (replace(outcome, state=RequestState.FAILED, error_code="invalid_json"), price))
    store.shards.move(store.shards.get(batch.id), ShardState.COLLECTED)
    assert told() == (200, 14)
    store.jobs.finish(found.id, "x", NOW)
    assert store.rows.retry(found.id, [RequestState.FAILED]) == 1
    assert told() == (200, 14), "they are paid for"
    settle(store, sharded(store, found, 2), succeeded(1))
    assert told() == (300, 21)
    usages = [total.usage for total in store.ledger.totals("job", job_id=found.id)]
    assert (sum(one.input_tokens for one in usages), sum(one.output_tokens for one in usages)) == (300, 21)


def test_days_are_those_of_a_zone_through_the_change_of_its_clocks(store: Store) -> None:
    zone = ZoneInfo("Europe/Berlin")  # its clocks went back at 1:00 UTC of 25 October
    found = added(store, 4)
    batch = sharded(store, found)
    times = ["2026-10-24T21:59", "2026-10-24T22:00", "2026-10-25T22:59", "2026-10-25T23:00"]
    for seq, at in enumerate(times):
        settle(store, batch, succeeded(seq), now=datetime.fromisoformat(f"{at}+00:00"))
    days = {total.group: total.rows for total in store.ledger.totals("day", zone=zone)}
    assert days == {"2026-10-24": 1, "2026-10-25": 2, "2026-10-26": 1}
    assert store.ledger.documents("day", zone=zone) == {**days, None: 4}
    assert {total.group for total in store.ledger.totals("day")} == {"2026-10-24", "2026-10-25"}
    assert {total.day.day for total in store.ledger.totals("job", zone=zone)} == {24, 25, 26}
