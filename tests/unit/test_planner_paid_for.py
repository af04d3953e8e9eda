"""What is paid for though it is given up: rows at a silent provider, and those of a batch whose files are late."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.model import JobId
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.policy.planner import Decision, Open, Option, Running, SynchronousOption, plan, replan
from orchestrator.policy.planner.job_orders import locate_rows
from tests.unit.test_planner import BATCH, HOUR, MINUTE, NOW, known, synchronous, terms

REALTIME = synchronous("realtime", "0.001", 8.0)
ROWS = 4000
PAID = Decimal("0.0005") * ROWS
SILENT = replace(BATCH, silent=40 * MINUTE, cancel_seconds=120.0)


def sent(minutes: float, *, is_over: bool = False) -> Open:
    return Open(running=(Running("b", "openai", ROWS, NOW - timedelta(minutes=minutes), is_over),))


def asked(job: Open, batch: Option, hours: float, budget: str | None = None) -> Decision:
    return replan(job, [batch, REALTIME], terms(hours, budget), NOW)


def test_what_a_silent_provider_has_is_paid_for_though_it_goes_elsewhere() -> None:
    given_up = asked(sent(40), SILENT, 0.2)
    assert given_up.cancel == ("b",)
    assert given_up.expected == PAID + Decimal("0.001") * ROWS
    gone = asked(sent(40), replace(BATCH, turnaround=known(20 * HOUR)), 0.2)
    assert gone.cancel == ("b",)
    assert gone.expected == Decimal("0.001") * ROWS, "one that answers bills what it has done"


def test_a_budget_has_to_cover_both() -> None:
    both = (PAID + Decimal("0.001") * ROWS) * Decimal("1.2")
    assert asked(sent(40), SILENT, 0.2, str(both)).cancel == ("b",)
    assert not asked(sent(40), SILENT, 0.2, str(both - Decimal("0.01"))).cancel


@pytest.mark.parametrize("hours", [0.75, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("since", [30.0, 60.0, 180.0])
def test_late_files_are_waited_for_as_long_as_a_rescue_is_in_time(hours: float, since: float) -> None:
    """A batch took 20 minutes on all nights; this one is over, and its files are not named: what it cost is gone."""
    over, running = (asked(sent(since, is_over=late), BATCH, hours) for late in (True, False))
    assert not over.cancel
    assert over.expected >= PAID
    assert over.reroute is not None
    if running.reroute is not None:
        assert over.reroute.at >= running.reroute.at, "to give it up sooner saves nothing"


def shard(completed: int, state: ShardState = ShardState.SUBMITTED, **more: object) -> Shard:
    made = Shard(
        ShardId("a.1"), JobId("a"), 1, "openai", "/v1", "m", state, "", 100, 0, NOW, submitted_at=NOW,
        provider_status=BatchStatus.IN_PROGRESS, provider_completed=completed,
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def lies(one: Shard, rows: int = 100) -> Open:
    return locate_rows([one], {one.id: rows}, (), {}, NOW, waiting=0, rerouted=0)


def test_a_batch_that_counts_all_rows_as_done_is_not_over_yet() -> None:
    [running] = lies(shard(100)).running
    assert (running.rows, running.is_over) == (1, False)
    told = replan(lies(shard(100)), [BATCH], terms(0.2), NOW)
    assert told.chance < 1.0, "its files are not there"


def test_one_whose_files_are_not_named_is_over_with_all_its_rows() -> None:
    [running] = lies(shard(100, held="no files", provider_status=BatchStatus.COMPLETED)).running
    assert (running.rows, running.is_over) == (100, True)


@pytest.mark.parametrize("one", [shard(100, ShardState.ENDED), shard(100, ShardState.COLLECTED)])
def test_what_is_here_is_not_waited_for(one: Shard) -> None:
    assert not lies(one).running
    assert not lies(shard(0), rows=0).running


def test_a_synchronous_option_needs_no_file() -> None:
    one = shard(100)
    assert locate_rows([one], {one.id: 100}, ("openai",), {}, NOW, waiting=0, rerouted=0).synchronous == ()
    assert isinstance(REALTIME, SynchronousOption)


ENDLESS = replace(BATCH, cancels=False, cancel_seconds=120.0)


def test_rows_of_a_batch_that_cannot_be_ended_are_paid_for_though_they_go_elsewhere() -> None:
    slow = replace(ENDLESS, turnaround=known(20 * HOUR))
    given_up = asked(sent(40), slow, 0.2)
    assert given_up.cancel == ("b",)
    assert given_up.expected == PAID + Decimal("0.001") * ROWS
    both = (PAID + Decimal("0.001") * ROWS) * Decimal("1.2")
    assert asked(sent(40), slow, 0.2, str(both)).cancel == ("b",)
    assert not asked(sent(40), slow, 0.2, str(both - Decimal("0.01"))).cancel


@pytest.mark.parametrize("hours", [1.0, 2.0, 4.0])
def test_a_plan_counts_both_payments_before_it_bets_on_a_batch_that_cannot_be_ended(hours: float) -> None:
    ended, endless = (replan(Open(waiting=ROWS), [one, REALTIME], terms(hours), NOW) for one in (BATCH, ENDLESS))
    assert endless.reroute is not None
    assert endless.expected > ended.expected
    assert endless.expected >= PAID + Decimal(str(endless.reroute.needed)) * Decimal("0.001") * ROWS


def test_a_plan_says_that_a_reroute_is_paid_twice() -> None:
    routes = [plan(ROWS, [one, REALTIME], terms(2), NOW).routes[0] for one in (BATCH, ENDLESS)]
    assert ["paid for twice" in route.reason for route in routes] == [False, True]
