"""Rows that go on with a stronger model: what their answers cost is booked and they wait again, both or neither."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.core.model import Outcome, Price, RequestState, Usage
from orchestrator.core.shards import Shard, ShardState
from orchestrator.settings.model_lists import Step
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.stored import NOW, added, avoided, later, settle, sharded, succeeded

STEP = Step("m@2", ("big",), ())
CENT = Price(Decimal("0.01"), "list")


@pytest.fixture
def ended(store: Store) -> Shard:
    """Three rows whose batch is over."""
    return sharded(store, added(store), state=ShardState.ENDED)


def bad(seq: int, price: Price | None = CENT, uncertain: Price | None = None) -> Settled:
    outcome = Outcome(
        seq, RequestState.FAILED, "output", usage=Usage(100, 40, 7), model="tiny", status=200,
        error_code="schema_mismatch", error_message="no",
    )  # fmt: skip
    return Settled(outcome, price, uncertain)


def waiting(store: Store, shard: Shard, avoid: tuple[str, ...] = ()) -> list[tuple[int, str, int]]:
    return [(row.seq, row.model, row.attempts) for row in store.rows.waiting(shard.job_id, avoid)]


def test_rows_climb_with_their_answers_booked_and_no_attempt_counted(store: Store, ended: Shard) -> None:
    assert store.escalations.escalate(ended, [bad(0), bad(2)], STEP, NOW) == 2

    assert waiting(store, ended) == [(0, "m@2", 0), (2, "m@2", 0)]
    [total] = store.ledger.totals("job")
    assert (total.rows, total.model, total.cost, total.usage) == (2, "tiny", Decimal("0.02"), Usage(200, 80, 14))
    states = [row.state for row in store.rows.finished(ended.job_id)]
    assert states == [RequestState.PENDING] * 3


def test_again_after_a_crash_it_changes_and_books_nothing(store: Store, ended: Shard) -> None:
    store.escalations.escalate(ended, [bad(0)], STEP, NOW)
    assert store.escalations.escalate(ended, [bad(0), bad(1)], STEP, NOW) == 1
    assert waiting(store, ended) == [(0, "m@2", 0), (1, "m@2", 0)]
    assert store.ledger.spent(ended.job_id) == Decimal("0.02")


def test_rows_that_have_an_outcome_or_are_in_another_shard_stay_there(store: Store, ended: Shard) -> None:
    job = store.jobs.get(ended.job_id)
    settle(store, ended, succeeded(0, "0.5"))
    store.rows.free(ended, [1], count_attempt=False)
    second = sharded(store, job, 2)

    assert store.escalations.escalate(ended, [bad(0), bad(1)], STEP, NOW) == 0
    assert [(row.seq, row.state) for row in store.rows.of_shard(second.id)] == [(1, RequestState.PENDING)]
    assert store.ledger.spent(job.id) == Decimal("0.5")


def test_nothing_climbs_where_nothing_is_said(store: Store, ended: Shard) -> None:
    assert store.escalations.escalate(ended, [], STEP, NOW) == 0
    assert waiting(store, ended) == []


def test_a_row_keeps_away_from_backends_that_have_nothing_stronger(store: Store, ended: Shard) -> None:
    store.escalations.escalate(ended, [bad(0)], Step("m@2", ("big",), ("flex", "gpu")), NOW)
    assert avoided(store, ended.job_id) == {("flex", "gpu")}
    assert waiting(store, ended, ("flex", "gpu")) == [(0, "m@2", 0)]


def test_sends_without_an_answer_are_booked_beside_it_and_what_has_no_price_is_not(
    store: Store, ended: Shard
) -> None:
    doubt = Price(Decimal("0.03"), "uncertain", estimated=True)
    store.escalations.escalate(ended, [bad(0, uncertain=doubt), bad(1, price=None)], STEP, NOW)
    [total] = store.ledger.totals("job")
    assert (total.rows, total.cost, total.uncertain) == (1, Decimal("0.04"), Decimal("0.03"))
    assert total.usage == Usage(100, 40, 7)


def test_the_answer_of_the_next_rung_is_a_line_of_its_own(store: Store, ended: Shard) -> None:
    store.escalations.escalate(ended, [bad(0), bad(1), bad(2)], STEP, NOW)
    second = sharded(store, store.jobs.get(ended.job_id), 2)
    settle(store, second, succeeded(0, "0.5", model="big"), now=later(1))

    by_model = {total.model: (total.rows, total.cost) for total in store.ledger.totals("model")}
    assert by_model == {"tiny": (3, Decimal("0.03")), "big": (1, Decimal("0.5"))}
    row = next(iter(store.rows.finished(ended.job_id)))
    assert (row.model, row.answered_by, row.attempt, row.cost) == ("m@2", "big", 0, Decimal("0.5"))


def test_a_retry_begins_again_with_the_first_model(store: Store, ended: Shard) -> None:
    store.escalations.escalate(ended, [bad(0), bad(1)], Step("m@2", ("big",), "gpu"), NOW)
    store.rows.free(ended, [2], count_attempt=False)
    store.rows.end_open(ended.job_id, RequestState.CANCELLED, "cancelled", "by the user", NOW)

    store.rows.retry(ended.job_id, [RequestState.CANCELLED])
    assert waiting(store, ended) == [(0, "m", 1), (1, "m", 1), (2, "m", 1)]


def test_how_far_the_rows_of_earlier_runs_came(store: Store, ended: Shard) -> None:
    assert store.observations.models_reached([ended.job_id]) == []
    store.escalations.escalate(ended, [bad(0)], STEP, NOW)
    job = store.jobs.get(ended.job_id)
    settle(store, ended, succeeded(1, "0.5"), succeeded(2, "0.5"))
    assert store.observations.models_reached([ended.job_id]) == [{"m": 2}], "who still waits came nowhere yet"
    settle(store, sharded(store, job, 2, state=ShardState.ENDED), succeeded(0, "0.5"))
    assert store.observations.models_reached([ended.job_id]) == [{"m": 2, "m@2": 1}]
