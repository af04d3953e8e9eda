"""The plan of a job: the cheapest that holds, why, and what would hold where nothing does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.core.durations import duration
from orchestrator.policy.forecast import Pace, SeenBatch, Turnaround, turnaround
from orchestrator.policy.planner import BatchOption, Cost, Option, Plan, SynchronousOption, Terms, covering, plan

NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
MINUTE, HOUR = 60.0, 3600.0
TAKEN_OVER = 90.0
"""Seconds before the deadline by which an option is planned to be done where another could take over from it."""


def known(seconds: float, count: int = 100) -> Turnaround:
    """Batches that took this long on so many nights."""
    seen = [SeenBatch(NOW - timedelta(days=day), seconds, True, 1000) for day in range(1, count + 1)]
    return turnaround(seen, rows=1000, at=NOW)


def cost(each: str) -> Cost:
    return Cost(Decimal(each), Decimal(each) * Decimal("1.2"))


def batch(name: str = "openai", each: str = "0.0005", seconds: float = 20 * MINUTE, **more: object) -> BatchOption:
    option = BatchOption(name, "hosted", cost(each), known(seconds))
    return replace(option, **more)  # type: ignore[arg-type]


def synchronous(
    name: str, each: str, rate: float, *, spread: float = 0.15, location: str = "hosted"
) -> SynchronousOption:
    return SynchronousOption(name, location, cost(each), Pace(rate, spread, "from 60 times"))


BATCH = batch()
REALTIME = synchronous("realtime", "0.001", 8.0)
FLEX = synchronous("flex", "0.0006", 3.0)
GPU = synchronous("gpu", "0.0003", 1.0, location="local")
IDLE = synchronous("gpu", "0", 1.0, location="local")


def terms(hours: float, budget: str | None = None) -> Terms:
    return Terms(NOW + timedelta(hours=hours), None if budget is None else Decimal(budget), margin=0.0)


def routes(planned: Plan) -> dict[str, int]:
    return {route.backend: route.rows for route in planned.routes}


def refused(planned: Plan) -> dict[str, str]:
    return {refusal.backend: refusal.reason for refusal in planned.refused}


def test_a_plan_that_does_not_hold_may_cost_what_the_budget_covers() -> None:
    """Its rows go elsewhere later, to whatever the budget then covers."""
    late, tight = batch(seconds=5 * HOUR), "4.9"
    planned = plan(8000, [late, REALTIME], terms(5, tight), NOW)
    assert routes(planned) == {"openai": 8000}
    assert planned.chance < 0.99
    assert planned.at_most == Decimal(tight)
    assert plan(8000, [late], terms(5, "1000"), NOW).at_most < 10, "no row costs more than at the dearest option"


CHOICES: dict[str, tuple[list[Option], Terms, dict[str, int]]] = {
    "time enough: the half price": ([BATCH, REALTIME], terms(8), {"openai": 8000}),
    "no time for a batch": ([batch(seconds=3 * HOUR), REALTIME], terms(0.5), {"realtime": 8000}),
    "only one way": ([REALTIME], terms(8), {"realtime": 8000}),
    "a free GPU that can do it all": ([BATCH, REALTIME, IDLE], terms(8), {"gpu": 8000}),
    "a free GPU that can do half of it": ([BATCH, REALTIME, IDLE], terms(1.45), {"gpu": 6000, "openai": 2000}),
    "two paces and no batch": ([REALTIME, IDLE], terms(1.4), {"gpu": 4950, "realtime": 3050}),
    "a batch, for want of anything surer": ([BATCH], terms(100), {"openai": 8000}),
    "the cheaper of two": ([batch("dear", "0.0006"), BATCH, REALTIME], terms(8), {"openai": 8000}),
    "the quicker one, where time is short": (
        [batch("slow", seconds=6 * HOUR), batch("quick", "0.00051"), REALTIME],
        terms(4),
        {"quick": 8000},
    ),
    "a quota shared by two": (
        [batch(room=4000, seconds=HOUR), batch("other", "0.00051", seconds=HOUR, room=4000), REALTIME],
        terms(2.2),
        {"openai": 4000, "other": 4000},
    ),
}


@pytest.mark.parametrize(("options", "asked", "expected"), CHOICES.values(), ids=CHOICES.keys())
def test_where_rows_go(options: list[Option], asked: Terms, expected: dict[str, int]) -> None:
    planned = plan(8000, options, asked, NOW)
    assert routes(planned) == expected
    assert planned.verdict.holds
    assert planned.chance >= 0.99


@pytest.mark.parametrize(("hazard", "spare"), [(0.0002, 0.0), (0.01, 0.0), (0.06, 3.0), (0.3, 6.0)])
def test_what_is_told_at_most_has_the_outage_in_it_that_one_night_in_twenty_may_have(
    hazard: float, spare: float
) -> None:
    """From the moment of that outage on, the dearer route does the rest."""
    gpu = replace(GPU, pace=replace(GPU.pace, hazard=hazard, outage=20 * HOUR, spread=0.05))
    planned = plan(8000, [gpu, REALTIME], terms(8), NOW)
    assert routes(planned) == {"gpu": 8000}
    lasts = min(8000.0, 0.0513 / hazard * HOUR)
    told = Decimal(repr(lasts)) * GPU.cost.p95 + Decimal(repr(8000.0 - lasts)) * REALTIME.cost.p95
    assert float(planned.at_most) == pytest.approx(float(told), rel=0.05)
    assert float(planned.at_most) >= spare


def test_what_is_told_at_most_covers_earlier_runs_that_cost_more_than_they_were_told() -> None:
    options = [FLEX, REALTIME]
    planned = plan(1000, options, terms(8), NOW)
    assert (
        planned.at_most < covering(planned, 1.5, 1000, options, terms(8)).at_most == planned.expected * Decimal("1.5")
    )
    dearest = 1000 * REALTIME.cost.p95
    assert covering(planned, 9.0, 1000, options, terms(8)).at_most == dearest, "all rows may go there"
    assert covering(planned, 9.0, 1000, options, terms(8, "0.9")).at_most == Decimal("0.9"), "and no more is there"
    assert covering(planned, 0.0, 1000, options, terms(8)) == planned


def test_a_table_that_people_read() -> None:
    asked = replace(terms(8), local_only=False)
    options = [BATCH, REALTIME, replace(FLEX, objection="job allows openai, realtime"), batch("anthropic", "0.0008")]
    planned = plan(8000, options, asked, NOW)
    route = planned.routes[0]
    assert (route.cost.p50, route.cost.p95) == (Decimal("4.0000"), Decimal("4.80000"))
    assert route.done_p50 is not None
    assert NOW + timedelta(minutes=18) < route.done_p50 < NOW + timedelta(minutes=23)
    assert 0.9 < route.chance < 1.0
    assert planned.reroute is not None
    assert planned.reroute.to == ("anthropic", "realtime"), "a second batch is cheaper, as long as there is time"
    assert planned.reroute.at < asked.deadline - timedelta(seconds=8000 / 8 + 600)
    wait = duration((planned.reroute.at - NOW).total_seconds())
    assert route.reason.startswith(f"rerouted after {wait} if still running")
    assert 0 < planned.reroute.needed < 0.05
    assert planned.chance > route.chance
    assert Decimal(4) <= planned.expected < Decimal("4.3")
    assert planned.at_most == Decimal("9.6000")
    assert refused(planned) == {
        "realtime": "reserved for a reroute; 2.0x dearer for all rows",
        "flex": "job allows openai, realtime",
        "anthropic": "reserved for a reroute; 1.6x dearer for all rows",
    }
    local = asked.deadline.astimezone()
    assert planned.verdict.reason == f"99.9% likely to be done by {local:%H:%M}"


def test_a_refusal_says_when_it_would_be_done() -> None:
    planned = plan(8000, [BATCH, REALTIME, synchronous("cpu", "0.0011", 0.1, location="local")], terms(8), NOW)
    slow = next(one for one in planned.refused if one.backend == "cpu")
    done = datetime(2026, 11, 23, 0, 26, tzinfo=UTC).astimezone()
    assert slow.reason == f"would finish by {done:%Y-%m-%d %H:%M} (p95)"
    assert slow.chance is not None
    assert slow.chance < 0.01


NOT_LOCAL = 'the job is local only, and this backend does not have location = "local"'


def test_a_local_job_stays() -> None:
    planned = plan(8000, [BATCH, REALTIME, GPU], replace(terms(1), local_only=True), NOW)
    assert routes(planned) in ({}, {"gpu": 8000})
    assert planned.reroute is None
    assert refused(planned)["openai"] == refused(planned)["realtime"] == NOT_LOCAL
    assert not planned.verdict.holds


def test_nothing_may_run_it() -> None:
    planned = plan(10, [replace(BATCH, objection="no key")], terms(8), NOW)
    assert (planned.routes, planned.expected, planned.verdict.reason) == ((), 0, "no backend may run this job")
    assert refused(planned) == {"openai": "no key"}


def test_there_is_nothing_to_do() -> None:
    planned = plan(0, [BATCH, REALTIME], terms(8), NOW)
    assert (planned.routes, planned.expected) == ((), 0)
    assert planned.verdict.holds


def test_a_budget_that_pays_for_no_rescue_takes_what_is_sure() -> None:
    """Batch first may come to need realtime, at $9.60; the GPU is dearer than the batch, and never more than $7."""
    gpu = synchronous("gpu", "0.0007", 3.0)
    dear = plan(8000, [BATCH, REALTIME, gpu], terms(2), NOW)
    assert "openai" in routes(dear)
    tight = plan(8000, [BATCH, REALTIME, gpu], terms(2, "7"), NOW)
    assert tight.verdict.holds
    assert tight.at_most <= 7
    assert tight.expected >= dear.expected


@pytest.mark.slow
def test_a_budget_that_does_not_do_names_the_one_that_does() -> None:
    planned = plan(8000, [BATCH, REALTIME], terms(0.6, "5"), NOW)
    assert not planned.verdict.holds
    assert planned.verdict.budget is not None
    assert planned.verdict.budget > 5
    assert "the budget of $5.00 is too small to be in time" in planned.verdict.reason
    enough = plan(8000, [BATCH, REALTIME], terms(0.6, str(planned.verdict.budget)), NOW)
    assert enough.verdict.holds
    assert enough.at_most <= planned.verdict.budget
    less = planned.verdict.budget * Decimal("0.97")
    assert not plan(8000, [BATCH, REALTIME], terms(0.6, str(less)), NOW).verdict.holds


def test_a_deadline_that_does_not_do_names_the_one_that_does() -> None:
    planned = plan(8000, [BATCH, REALTIME], terms(0.2), NOW)
    assert not planned.verdict.holds
    assert planned.verdict.budget is None
    deadline = planned.verdict.deadline
    assert deadline is not None
    assert deadline > NOW + timedelta(minutes=15)
    assert plan(8000, [BATCH, REALTIME], Terms(deadline, margin=0.0), NOW).verdict.holds
    sooner = Terms(deadline - timedelta(minutes=3), margin=0.0)
    assert not plan(8000, [BATCH, REALTIME], sooner, NOW).verdict.holds
    assert planned.routes, "it is run as well as it can be all the same"


def test_a_budget_that_pays_for_nothing_gives_no_routes() -> None:
    planned = plan(8000, [BATCH, REALTIME], terms(8, "1"), NOW)
    assert (planned.routes, planned.reroute, planned.at_most) == ((), None, 0)
    assert planned.verdict.reason == (
        "every way to run this costs more than the budget of $1.00: expected $4.00, at most $9.60; "
        "cheapest at openai, at most $4.80"
    )
    assert planned.verdict.deadline is None
    assert planned.verdict.budget == Decimal("4.8000")
    assert refused(planned)["openai"] == "costs up to $4.80, which is over the budget of $1.00"


def test_a_budget_that_pays_for_nothing_names_the_cheapest_way_even_if_it_is_late() -> None:
    planned = plan(8000, [BATCH, REALTIME], terms(0.6, "1"), NOW)
    assert planned.verdict.reason == (
        "every way to run this costs more than the budget of $1.00: expected $7.77, at most $9.60; "
        "cheapest at openai, at most $4.80, too late"
    )


def test_no_deadline_ever_holds() -> None:
    planned = plan(8000, [replace(REALTIME, pace=replace(REALTIME.pace, rate=0.0))], terms(8), NOW)
    assert planned.verdict == replace(
        planned.verdict, holds=False, deadline=None, reason="0% likely to be in time; the target is 99%"
    )


def test_being_late_may_be_cheaper_than_a_rescue() -> None:
    slow = batch(seconds=5 * HOUR)
    first = plan(8000, [slow, REALTIME], terms(4), NOW)
    cheap = plan(8000, [slow, REALTIME], replace(terms(4), late_cost=Decimal("0.10")), NOW)
    dear = plan(8000, [slow, REALTIME], replace(terms(4), late_cost=Decimal("100")), NOW)
    assert first.chance >= 0.99
    assert cheap.chance < 0.5
    assert cheap.expected < first.expected
    assert cheap.verdict.holds
    assert "costs more than being late" in cheap.verdict.reason
    assert dear.chance > 0.95
    assert dear.expected > cheap.expected


def test_what_others_have_there_counts() -> None:
    free = plan(8000, [GPU, REALTIME], terms(4), NOW)
    busy = plan(8000, [replace(GPU, pace=replace(GPU.pace, ahead=9000)), REALTIME], terms(4), NOW)
    assert routes(free) == {"gpu": 8000}
    assert routes(busy)["gpu"] == pytest.approx(4 * 3600 - TAKEN_OVER - 9000, abs=2)
    assert routes(busy)["realtime"] == 8000 - routes(busy)["gpu"]


def test_a_slower_cancel_means_an_earlier_rescue() -> None:
    quick = plan(8000, [batch(cancel_seconds=60), REALTIME], terms(2), NOW)
    slow = plan(8000, [batch(cancel_seconds=1800), REALTIME], terms(2), NOW)
    assert quick.reroute is not None
    assert slow.reroute is not None
    assert slow.reroute.at < quick.reroute.at


def test_a_pace_that_is_less_known_means_an_earlier_rescue() -> None:
    steady = plan(8000, [BATCH, synchronous("realtime", "0.001", 4.0, spread=0.05)], terms(4), NOW)
    wild = plan(8000, [BATCH, synchronous("realtime", "0.001", 4.0, spread=0.5)], terms(4), NOW)
    assert steady.reroute is not None
    assert wild.reroute is not None
    assert wild.reroute.at < steady.reroute.at


def test_a_tier_that_was_slow_whenever_batches_were_late_is_not_relied_upon() -> None:
    tier = synchronous("realtime", "0.0006", 4.0)
    engine = synchronous("gpu", "0.0009", 1.0, location="local")
    apart = plan(8000, [BATCH, tier, engine], terms(4), NOW)
    together = plan(8000, [BATCH, replace(tier, slow_with={"openai": (0.8, 0.0)}), engine], terms(4), NOW)
    elsewhere = plan(8000, [BATCH, replace(tier, slow_with={"anthropic": (0.8, 0.0)}), engine], terms(4), NOW)
    assert apart.reroute == elsewhere.reroute
    assert apart.reroute is not None
    assert together.reroute is not None
    # The engine does 8,000 rows in 2 h 13 min.
    assert apart.reroute.at > NOW + timedelta(hours=2)
    assert together.reroute.at < NOW + timedelta(hours=1, minutes=45)
    assert together.chance >= 0.99


@pytest.mark.parametrize("share", [0.3, 0.45])
def test_a_tier_that_was_half_as_fast_whenever_batches_were_late_is_planned_as_such(share: float) -> None:
    tier, unknown = synchronous("realtime", "0.001", 4.0), replace(BATCH, turnaround=turnaround([], rows=1, at=NOW))
    apart = plan(8000, [unknown, tier], terms(6), NOW)
    together = plan(8000, [unknown, replace(tier, slow_with={"openai": (0.5, share)})], terms(6), NOW)
    assert apart.reroute is not None
    assert together.reroute is not None, "a batch is sent"
    in_time = timedelta(seconds=8000 / (4.0 * share))
    assert together.reroute.at + in_time < NOW + timedelta(hours=6) < apart.reroute.at + in_time
    assert together.chance >= 0.99


def test_no_batch_is_sent_if_its_only_fallback_is_slow_with_it() -> None:
    tier = synchronous("realtime", "0.001", 4.0)
    apart = plan(8000, [BATCH, tier], terms(4), NOW)
    together = plan(8000, [BATCH, replace(tier, slow_with={"openai": (0.8, 0.0)})], terms(4), NOW)
    assert routes(apart) == {"openai": 8000}
    assert routes(together) == {"realtime": 8000}


def test_a_quota_makes_waves() -> None:
    whole = plan(8000, [batch(), REALTIME], terms(6), NOW)
    waves = plan(8000, [batch(room=1000), REALTIME], terms(6), NOW)
    p50 = {name: planned.routes[0].done_p50 for name, planned in (("whole", whole), ("waves", waves))}
    assert p50["whole"] is not None
    assert p50["waves"] is not None
    assert p50["waves"] - NOW > 6 * (p50["whole"] - NOW)
    none = plan(8000, [batch(room=100), REALTIME], terms(20), NOW)
    assert none.routes[0].rows <= 2400, "more than 24 times the quota is nothing to wait for"


def test_a_quota_that_another_job_fills_now_is_waited_for() -> None:
    planned = plan(8000, [batch(room=8000, behind=8000), REALTIME], terms(8), NOW)
    assert planned.verdict.holds
    assert routes(planned) == {"openai": 8000}
    alone = plan(8000, [batch(room=8000), REALTIME], terms(8), NOW)
    assert planned.routes[0].done_p50 is not None
    assert alone.routes[0].done_p50 is not None
    assert planned.routes[0].done_p50 > alone.routes[0].done_p50


def test_nothing_is_sent_to_a_batch_that_expires_first() -> None:
    planned = plan(8000, [batch(window=HOUR, seconds=2 * HOUR), REALTIME], terms(40), NOW)
    assert routes(planned) == {"realtime": 8000}
    assert refused(planned) == {"openai": "might never finish (p95)"}


def test_one_that_counts_on_a_batch_alone_is_for_want_of_a_rescue() -> None:
    """It would hold the target, and be cheaper than with a reroute, until it is slow."""
    quick = batch(seconds=10 * MINUTE, turnaround=known(10 * MINUTE, 900))
    slow_rescue = synchronous("realtime", "0.001", 0.6)
    assert plan(8000, [quick], terms(8), NOW).verdict.holds
    with_rescue = plan(8000, [quick, slow_rescue], terms(8), NOW)
    assert with_rescue.reroute is not None
    alone = plan(8000, [quick, slow_rescue], terms(8, "5"), NOW)
    assert alone.verdict.holds
    assert (alone.reroute, alone.at_most) == (None, Decimal("4.8000"))


def test_too_many_rows_for_the_only_way() -> None:
    planned = plan(1_000_000, [batch(room=500)], terms(8), NOW)
    assert planned.routes == ()
    assert planned.verdict.reason == "no backend has room for 1,000,000 rows"
    assert refused(planned) == {"openai": "1,000,000 rows are too many for its queue, which takes 500 at once"}
    with_budget = plan(1_000_000, [batch(room=500)], terms(8, "1"), NOW)
    assert with_budget.verdict.reason == planned.verdict.reason


@pytest.mark.parametrize("slips", [0.003, 0.034, 0.1, 0.5])
@pytest.mark.parametrize("hours", [0.6, 0.8, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("target", [0.95, 0.99, 0.999])
def test_what_holds_has_the_chance_asked_for(slips: float, hours: float, target: float) -> None:
    """Batches take half an hour or four; where a cancel often slips, what needs one does not hold."""
    seen = [SeenBatch(NOW - timedelta(days=day), (4 * HOUR, 1800.0)[day % 2], True, 1000) for day in range(1, 101)]
    unsure = replace(BATCH, turnaround=turnaround(seen, rows=1000, at=NOW), slips=slips)
    planned = plan(4000, [unsure, REALTIME], replace(terms(hours), target=target), NOW)
    assert planned.verdict.holds
    assert planned.chance >= target
    if slips == 0.5:
        assert "openai" not in routes(planned)


@pytest.mark.parametrize("hazard", [0.0002, 0.01, 0.05, 0.2])
def test_a_cheap_engine_that_fails_at_times_gets_what_it_usually_does(hazard: float) -> None:
    """All but the last ten minutes, in which nobody would notice an outage in time; realtime can do all of it."""
    gpu = replace(GPU, pace=replace(GPU.pace, hazard=hazard, outage=2000.0, spread=0.28))
    planned = plan(40_000, [gpu, REALTIME], terms(8), NOW)
    assert planned.verdict.holds
    assert 0.97 * 8 * HOUR <= routes(planned)["gpu"] <= 8 * HOUR


@pytest.mark.parametrize("least", [1, 100, 900])
def test_a_batch_has_at_least_so_many_rows_or_none(least: int) -> None:
    few = batch("night", each="0.0001", least=least)
    for count in (50, 120, 1000):
        taken = {route.backend: route.rows for route in plan(count, [few, REALTIME], terms(8), NOW).routes}
        assert sum(taken.values()) == count
        night = taken.get("night", 0)
        assert night == 0 or night >= least
        assert bool(night) == (count >= least)
