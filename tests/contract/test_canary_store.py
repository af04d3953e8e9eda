"""The rows that go first, on each database: chosen, told apart from the others, judged, and let go of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.core.model import Forecast, Job, RequestState, Span
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.plan import canary
from orchestrator.pipeline.plan.canary import Stage
from orchestrator.store import Store
from orchestrator.store.quality import Quality
from tests.support.stored import NOW, SPEC, failed, job, later, row, settle, sharded, succeeded


def made(store: Store, rows: int = 12, **facts: object) -> Job:
    """Rows of two tasks by turns; the later, the shorter."""
    new = job(spec={**SPEC, "canary": {"rows": 4}}, built_at=NOW, **facts)
    store.jobs.add(new, {})
    spans = [Span(seq * 1000, 900 - seq) for seq in range(rows)]
    store.rows.add(new.id, [row(seq, span=span, task="ab"[seq % 2]) for seq, span in enumerate(spans)], {}, NOW)
    return new


def first(store: Store, of: Job) -> list[int]:
    return [one.seq for one in store.rows.waiting(of.id, canary=True)]


def events(store: Store, of: Job) -> list[tuple[str, str]]:
    return [(event.kind, event.reason) for event in store.jobs.events(of.id)]


def batch(store: Store, of: Job, *outcomes: object) -> None:
    """A batch of every row that waits, over; these of them have an outcome."""
    settle(store, sharded(store, of, state=ShardState.ENDED), *outcomes)


def test_they_are_spread_over_tasks_and_lengths(store: Store) -> None:
    new = made(store)
    assert store.canary.mark(new.id, 4) == 4
    # Of task a the places 0 2 4 … 10 and of b 1 3 5 … 11, each by rising length.
    assert first(store, new) == [2, 3, 8, 9]
    assert store.rows.has_waiting(new.id, canary=True)
    assert sum(part.rows for part in store.sizes.open_work(new.id, canary=True)) == 4
    assert sum(part.rows for part in store.sizes.open_work(new.id)) == 12
    store.canary.all_follow(new.id)
    assert not store.rows.has_waiting(new.id, canary=True)
    assert store.canary.state(new.id) is None


@pytest.mark.parametrize(("rows", "marked"), [(4, 0), (5, 4)])
def test_there_is_none_where_none_would_follow(store: Store, rows: int, marked: int) -> None:
    new = made(store, rows)
    canary.mark(store, new, NOW)
    assert len(first(store, new)) == marked
    told = "4 rows go first" if marked else "skipped: no more than 4 rows"
    assert events(store, new) == [("canary", told)]


def test_rows_without_a_request_to_send_are_not_chosen(store: Store) -> None:
    new = job(spec={**SPEC, "canary": {"rows": 2}})
    store.jobs.add(new, {})
    rows = [row(seq, problem=("empty", "no text") if seq < 4 else None) for seq in range(7)]
    store.rows.add(new.id, rows, {}, NOW, {6: 5})
    assert store.canary.mark(new.id, 2) == 0
    assert store.canary.mark(new.id, 1) == 1
    assert first(store, new) == [5]


def test_only_they_go_into_a_shard_though_others_lie_between_them(store: Store) -> None:
    from orchestrator.policy.sharding import pack
    from tests.support.stored import shard

    new = made(store)
    store.canary.mark(new.id, 4)
    [found] = pack(store.rows.waiting(new.id, canary=True), max_rows=100, max_bytes=10**9)
    of = shard(new, rows=found.rows)
    store.shards.add(of, found, canary=True)
    assert [one.seq for one in store.rows.of_shard(of.id)] == [2, 3, 8, 9]


def test_it_runs_until_every_row_has_an_outcome_and_then_the_others_follow(store: Store) -> None:
    new = made(store)
    store.canary.mark(new.id, 4)
    batch(store, new, succeeded(2, "0.01"), failed(3, "refusal"), succeeded(8, "0.01"))
    assert canary.look(store, new, NOW) is Stage.RUNS
    batch_of_nine = store.shards.of_job(new.id)[0]
    settle(store, batch_of_nine, succeeded(9, "0.01"))
    assert store.canary.state(new.id) == (0, 4, {"refusal": 1})
    assert canary.look(store, new, NOW) is Stage.FOLLOWS
    assert events(store, new) == [("canary", "1 of 4 rows that went first failed (1 refusal): the others follow")]
    assert canary.look(store, new, NOW) is Stage.NONE


def test_too_many_failures_end_the_job_once_and_a_retry_goes_on_without(store: Store) -> None:
    new = made(store)
    store.canary.mark(new.id, 4)
    batch(store, new, failed(2, "refusal"), failed(3, "truncated"), succeeded(8), succeeded(9))
    assert [canary.look(store, new, later(hour)) for hour in (1, 2)] == [Stage.STOPPED] * 2
    why = "canary: 2 of 4 rows that went first failed (1 refusal, 1 truncated), more than 25%"
    assert events(store, new) == [("stopped", why)]
    assert store.jobs.get(new.id).cancel_reason == why
    store.rows.retry(new.id, [RequestState.FAILED])
    assert canary.look(store, store.jobs.get(new.id), NOW) is Stage.NONE


def test_the_cost_is_held_against_what_was_foreseen_first(store: Store) -> None:
    new = made(store)
    store.canary.mark(new.id, 4)
    for p50 in (0.01, 99.0):
        store.forecasts.made([Forecast(new.id, "canary", "gpu", "", NOW, p50, p50, "plan")])
    batch(store, new, *(succeeded(seq, "0.006") for seq in (2, 3, 8, 9)))
    assert canary.look(store, new, NOW) is Stage.STOPPED
    assert "they cost $0.0240, 2.40 times the forecast, more than 2 times" in events(store, new)[0][1]
    [forecast] = store.forecasts.since()
    assert forecast.actual == 0.024


def test_the_others_do_not_wait_for_rows_that_are_late(store: Store) -> None:
    new = made(store, deadline_at=NOW + timedelta(hours=8))
    store.canary.mark(new.id, 4)
    batch(store, new, succeeded(2))
    assert canary.look(store, new, later(1.9)) is Stage.RUNS
    assert canary.look(store, new, later(2)) is Stage.FOLLOWS
    told = "skipped: 3 of 4 rows not back by 22:00 UTC; the other rows follow without it"
    assert events(store, new) == [("canary", told)]


def test_a_job_that_asks_for_none_has_none(store: Store) -> None:
    new = job()
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(seq) for seq in range(3)], {}, NOW)
    canary.mark(store, new, NOW)
    assert canary.look(store, new, NOW) is Stage.NONE
    assert events(store, new) == []


def test_quality_is_kept_once_and_anew(store: Store) -> None:
    new = job()
    store.jobs.add(new, {})
    assert store.quality.of(new.id) is None
    store.quality.note(new.id, Quality(3, 4, 2, 1, "too low"), NOW)
    store.quality.note(new.id, Quality(4, 4, 2, 1, None), NOW)
    found = store.quality.of(new.id)
    assert found == Quality(4, 4, 2, 1, None)
    assert (found.share, Quality(0, 0, 0, 2, None).share) == (1.0, None)
