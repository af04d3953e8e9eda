"""The deadline guard: it waits as long as it may, and not a minute longer."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.policy.forecast import SeenBatch, turnaround
from orchestrator.policy.planner import Open, Option, Running, Send, SynchronousOption, Terms, replan
from orchestrator.policy.planner.candidate_plans import BatchShare, done_by
from orchestrator.policy.planner.capacity import capacity
from orchestrator.policy.planner.explanations import clock
from tests.unit.test_planner import BATCH, GPU, HOUR, IDLE, MINUTE, NOW, REALTIME, batch, synchronous

TERMS = Terms(NOW + timedelta(hours=4), margin=0.0)
OPTIONS: list[Option] = [BATCH, REALTIME]


def at(hours: float) -> datetime:
    return NOW + timedelta(hours=hours)


def running(*rows: int, sent: float = 0.0, backend: str = "openai") -> tuple[Running, ...]:
    return tuple(Running(f"b{number}", backend, each, at(sent)) for number, each in enumerate(rows))


def still(option: SynchronousOption) -> SynchronousOption:
    return replace(option, pace=option.pace.now(0.0, 60))


def dead(option: SynchronousOption) -> SynchronousOption:
    """It stands still, and such standstills usually last for days."""
    stopped = still(option)
    return replace(stopped, pace=replace(stopped.pace, outage=48 * HOUR))


def test_a_batch_that_runs_is_left_alone_while_there_is_time() -> None:
    decision = replan(Open(running=running(4000, 4000)), OPTIONS, TERMS, at(0.5))
    assert (decision.cancel, decision.sends) == ((), ())
    assert decision.chance >= 0.99
    assert decision.reroute is not None
    told = f"there is time: batches still running at {clock(decision.reroute.at, at(0.5))} are cancelled and rerouted"
    assert decision.reason.startswith(told), "the moment that `orch plan` and the outlook name too"
    assert decision.reroute.to == ("realtime",)
    assert at(0.5) < decision.next_look <= at(1.0)


@pytest.mark.slow
def test_the_rescue_comes_before_it_is_too_late_and_not_much_before() -> None:
    """8,000 rows take realtime 17 minutes, a cancel up to 10: time comes half an hour before the deadline."""
    polls = [hours / 60 for hours in range(0, 240, 1)]
    job = Open(running=running(8000))
    rerouted = next(h for h in polls if replan(job, OPTIONS, TERMS, at(h)).cancel)
    assert 4 - rerouted == pytest.approx(36 / 60, abs=0.1)
    decision = replan(job, OPTIONS, TERMS, at(rerouted))
    assert decision.cancel == ("b0",)
    assert decision.chance >= 0.99
    assert decision.reason.startswith("8,000 rows rerouted from b0: later, the rest might not finish in time")


@pytest.mark.parametrize(
    ("held", "price", "moves"),
    [((("realtime", 3000),), "0.0003", 3000), ((("gpu", 3000),), "0.0003", 0), ((("realtime", 3000),), "0.00099", 0)],
    ids=["a cheaper engine has nothing to do", "it has them", "it is hardly cheaper"],
)
def test_rows_move_to_a_cheaper_idle_route(held: tuple[tuple[str, int], ...], price: str, moves: int) -> None:
    gpu = synchronous("gpu", price, 1.0, location="local")
    decision = replan(Open(synchronous=held), [gpu, REALTIME], TERMS, NOW)
    assert sum(send.rows for send in decision.sends) == moves
    assert {(send.source, send.backend) for send in decision.sends} == ({("realtime", "gpu")} if moves else set())
    assert decision.chance >= 0.99


@pytest.mark.parametrize("slips", [0.1, 0.2, 0.45, 0.8])
@pytest.mark.parametrize("ends", [0.7, 0.85, 0.95])
def test_a_batch_that_ends_more_often_than_a_cancel_does_is_not_cancelled(slips: float, ends: float) -> None:
    """Cancels may take for ever here, so to cancel at once makes no row surer; most batches end in an hour."""
    seen = [
        SeenBatch(NOW - timedelta(days=day), HOUR if day % 100 < 100 * ends else 90 * HOUR, True, 1000)
        for day in range(1, 101)
    ]
    option = batch(turnaround=turnaround(seen, rows=1000, at=NOW), slips=slips)
    alone = done_by([BatchShare(option, 2000)], 38 * HOUR)
    decision = replan(Open(running=running(2000)), [option, REALTIME], Terms(at(38), margin=0.0), NOW)
    assert decision.chance >= alone - 0.01
    assert not decision.cancel


@pytest.mark.long
def test_what_is_done_already_gives_more_time() -> None:
    def rerouted(rows: int) -> float:
        polls = (minutes / 60 for minutes in range(0, 240))
        return next(h for h in polls if replan(Open(running=running(rows)), OPTIONS, TERMS, at(h)).cancel)

    assert rerouted(8000) < rerouted(4000) < rerouted(500)


def test_only_as_many_batches_are_pulled_back_as_need_be() -> None:
    """The GPU is worth its time while there is time; the others may end yet, and realtime could take them later."""
    gpu = synchronous("gpu", "0.0006", 0.5)
    job = Open(running=running(2000, 2000, 2000, 2000))
    polls = (minutes / 60 for minutes in range(0, 240))
    stuck = batch(turnaround=turnaround([SeenBatch(NOW, 3 * HOUR, False, 1000)], rows=1000, at=NOW))
    decisions = (replan(job, [stuck, gpu, REALTIME], TERMS, at(h)) for h in polls)
    first = next(decision for decision in decisions if decision.cancel)
    assert 1 <= len(first.cancel) < 4
    assert first.reroute is not None
    assert first.chance >= 0.99


@pytest.mark.slow
def test_in_the_last_minute_all_are_pulled_back() -> None:
    polls = (minutes / 60 for minutes in range(0, 240))
    decisions = (replan(Open(running=running(2000, 2000, 2000, 2000)), OPTIONS, TERMS, at(h)) for h in polls)
    first = next(decision for decision in decisions if decision.cancel)
    assert first.cancel == ("b0", "b1", "b2", "b3")
    assert first.reason.startswith("8,000 rows rerouted from 4 batches")


def test_pulled_rows_go_to_the_sure_route_and_to_no_batch() -> None:
    decision = replan(Open(rerouted=5000), OPTIONS, TERMS, at(0.1))
    assert decision.sends == (Send(5000, "realtime"),)
    assert replan(Open(waiting=5000), OPTIONS, TERMS, at(0.1)).sends == (Send(5000, "openai"),)
    both = replan(Open(waiting=3000, rerouted=2000), OPTIONS, TERMS, at(0.1))
    assert sorted((send.backend, send.rows) for send in both.sends) == [("openai", 3000), ("realtime", 2000)]


def test_coming_rows_are_waited_for() -> None:
    decision = replan(Open(coming=5000, coming_at=at(3.4)), OPTIONS, TERMS, at(3.3))
    assert (decision.cancel, decision.sends) == ((), ())
    assert decision.chance >= 0.99
    assert decision.gives_up_at is None
    late = replan(Open(coming=5000, coming_at=at(3.95)), OPTIONS, TERMS, at(3.3))
    assert late.chance >= 0.99, "they are asked elsewhere before that"
    assert late.gives_up_at is not None
    assert at(3.3) < late.gives_up_at < at(4) - timedelta(seconds=5000 / 8)
    over = replan(Open(coming=5000, coming_at=at(3.99)), OPTIONS, TERMS, at(3.9))
    assert (over.gives_up_at, over.chance < 0.01) == (None, True), "to ask them anew would be too late as well"


def test_a_option_that_keeps_up_is_left_alone() -> None:
    decision = replan(Open(synchronous=(("gpu", 7000),)), [IDLE, REALTIME], TERMS, at(1))
    assert (decision.sends, decision.reason[:10]) == ((), "on its way")


@pytest.mark.slow
def test_a_option_that_does_not_keep_up_keeps_what_it_surely_does() -> None:
    polls = (halves / 120 for halves in range(0, 480))
    held = Open(synchronous=(("gpu", 14400),))
    moved = next((h, d) for h in polls if (d := replan(held, [IDLE, REALTIME], TERMS, at(h))).sends)
    hours, decision = moved
    (send,) = decision.sends
    assert (send.source, send.backend) == ("gpu", "realtime")
    left = (4 - hours) * HOUR
    assert left * 0.6 < 14400 - send.rows < left
    assert decision.chance >= 0.99
    assert decision.reason.startswith(f"{send.rows:,} rows leave gpu, which would not finish them in time")


def test_what_a_dead_option_holds_goes_to_a_batch_while_there_is_time() -> None:
    held = Open(synchronous=(("gpu", 5000),))
    early = replan(held, [BATCH, dead(IDLE), REALTIME], TERMS, at(0.5))
    assert early.sends == (Send(4980, "openai", "gpu"),), "a few stay, to see when it is back"
    late = replan(held, [BATCH, dead(IDLE), REALTIME], TERMS, at(3.8))
    assert late.sends == (Send(5000, "realtime", "gpu"),)


def test_what_a_option_will_not_do_goes_to_a_batch_in_time() -> None:
    half = replace(IDLE, pace=replace(IDLE.pace, spread=0.05, rate=0.5))
    decision = replan(Open(synchronous=(("gpu", 8000),)), [BATCH, half, REALTIME], TERMS, at(1))
    (send,) = decision.sends
    assert (send.source, send.backend) == ("gpu", "openai")
    assert send.rows == pytest.approx(8000 - 3 * HOUR * 0.5, abs=1)
    nearly = replan(Open(synchronous=(("gpu", 5500),)), [BATCH, half, REALTIME], TERMS, at(1))
    assert nearly.sends == (), "a hundred rows are not worth a batch"


def test_a_backend_with_an_objection_loses_its_rows() -> None:
    options = [BATCH, replace(IDLE, objection="the key is bad"), REALTIME]
    decision = replan(Open(synchronous=(("gpu", 5000),)), options, TERMS, at(0.5))
    assert decision.sends == (Send(5000, "openai", "gpu"),)


def test_a_local_job_is_not_rescued_outside() -> None:
    local = replace(TERMS, local_only=True)
    slow = replace(IDLE, pace=replace(IDLE.pace, rate=0.1))
    for options in ([BATCH, slow, REALTIME], [BATCH, still(IDLE), REALTIME]):
        for hours in (0.5, 3.9, 5.0):
            decision = replan(Open(waiting=10, synchronous=(("gpu", 5000),)), options, local, at(hours))
            assert {send.backend for send in decision.sends} <= {"gpu"}
            assert decision.chance < 0.01


def test_an_unknown_backend_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        replan(Open(synchronous=(("lan", 10),)), OPTIONS, TERMS, NOW)
    with pytest.raises(KeyError):
        replan(Open(running=running(10, backend="lan")), OPTIONS, TERMS, NOW)


def test_where_nothing_is_sure_it_takes_what_is_likelier() -> None:
    slow = synchronous("realtime", "0.001", 2.0, spread=0.3)
    early = replan(Open(running=running(8000)), [BATCH, slow], Terms(at(1)), at(0.01))
    assert early.cancel == ()
    assert early.reason.startswith("nothing is more likely to be in time")
    # Two hours on, a batch that was to take 20 minutes has something; the GPU has a fair chance yet.
    stuck = batch(turnaround=turnaround([SeenBatch(NOW, 2 * HOUR, False, 1000)], rows=1000, at=NOW))
    late = replan(Open(running=running(8000)), [stuck, slow], Terms(at(3.3)), at(2))
    assert late.cancel == ("b0",)
    assert "that is likelier than waiting" in late.reason


def test_when_it_is_late_it_goes_where_it_is_done_soonest() -> None:
    late = at(5)
    assert replan(Open(waiting=1000), OPTIONS, TERMS, late).sends == (Send(1000, "realtime"),)
    slow = batch(turnaround=turnaround([SeenBatch(NOW, 5 * HOUR, False, 1000)], rows=1000, at=NOW))
    assert replan(Open(running=running(1000)), [slow, REALTIME], TERMS, late).cancel == ("b0",)
    dead = replan(Open(synchronous=(("gpu", 1000),)), [still(IDLE), REALTIME], TERMS, late)
    assert dead.sends == (Send(1000, "realtime", "gpu"),)
    assert dead.reason == "the deadline has passed; open rows go where they finish soonest"
    nearly = replan(Open(synchronous=(("gpu", 60), ("realtime", 500))), [IDLE, REALTIME], TERMS, late)
    assert nearly.sends == (), "a minute's gain is not worth a move"


def test_a_budget_that_is_spent_lets_run_what_runs() -> None:
    spent = replace(TERMS, budget=Decimal("0.10"))
    decision = replan(Open(running=running(8000)), OPTIONS, spent, at(3.4))
    assert (decision.cancel, decision.sends, decision.reroute) == ((), (), None)
    assert decision.reason == "nothing else fits the budget"
    assert 0.0 < decision.chance < 1.0
    assert replan(Open(waiting=10), OPTIONS, replace(TERMS, budget=Decimal("0.001")), at(1)).chance == 0.0


@pytest.mark.slow
def test_a_budget_keeps_the_rescue_where_it_pays_for_it() -> None:
    """Realtime would cost up to $9.60, the GPU $5.76: it has to begin earlier, and does."""
    gpu = synchronous("gpu", "0.0006", 1.5)
    budget = replace(TERMS, budget=Decimal("6"))
    polls = (minutes / 60 for minutes in range(0, 240))
    job = Open(running=running(8000))
    rerouted = next((h, d) for h in polls if (d := replan(job, [BATCH, gpu, REALTIME], budget, at(h))).cancel)
    assert rerouted[0] < 2.2
    assert rerouted[1].chance >= 0.99


def test_lateness_is_weighed_where_it_has_a_price() -> None:
    job = Open(running=running(8000))
    stuck = batch(turnaround=turnaround([SeenBatch(NOW, 3.3 * HOUR, False, 1000)], rows=1000, at=NOW))
    dear = replan(job, [stuck, REALTIME], replace(TERMS, late_cost=Decimal(100)), at(3.45))
    cheap = replan(job, [stuck, REALTIME], replace(TERMS, late_cost=Decimal("0.01")), at(3.45))
    assert dear.cancel == ("b0",)
    assert cheap.cancel == ()


def test_every_row_has_its_outcome() -> None:
    decision = replan(Open(), OPTIONS, TERMS, at(1))
    assert (decision.sends, decision.chance, decision.expected) == ((), 1.0, 0)


def test_the_same_look_twice_decides_the_same() -> None:
    job = Open(waiting=100, running=running(3000, 2000), synchronous=(("gpu", 4000),))
    options = [BATCH, IDLE, REALTIME]
    assert replan(job, options, TERMS, at(2)) == replan(job, options, TERMS, at(2))


def test_it_looks_again_before_something_has_to_be_done() -> None:
    job, hours = Open(running=running(8000)), 0.2
    while not (decision := replan(job, OPTIONS, TERMS, at(hours))).cancel:
        assert decision.chance >= 0.99
        assert decision.next_look >= at(hours) + timedelta(seconds=MINUTE / 2)
        hours = (decision.next_look - NOW) / timedelta(hours=1)
    assert decision.chance >= 0.99


def test_batches_of_one_backend_are_as_sure_as_their_youngest() -> None:
    def needed(*sent: float) -> float:
        batches = tuple(Running(f"b{number}", "openai", 2000, at(each)) for number, each in enumerate(sent))
        reroute = replan(Open(running=batches), OPTIONS, TERMS, at(0.3)).reroute
        assert reroute is not None
        return reroute.needed

    assert needed(0.0, 0.29) == needed(0.29, 0.29) != needed(0.0, 0.0)


def test_the_last_rows_of_a_slow_option_are_not_forgotten() -> None:
    """What it would do behind the deadline does not count."""
    slow = replace(IDLE, pace=replace(IDLE.pace, rate=0.27, spread=0.05))
    decision = replan(Open(synchronous=(("gpu", 20),)), [slow, REALTIME], TERMS, at(4 - 75 / HOUR))
    assert decision.sends
    assert decision.chance >= 0.99


def test_rows_that_come_too_late_are_told_of_though_there_is_a_rescue_for_the_rest() -> None:
    job = Open(coming=50_000, coming_at=at(3.95), running=running(1000))
    decision = replan(job, OPTIONS, TERMS, at(2.5))
    assert decision.chance < 0.01
    assert not decision.reason.startswith("there is time")


def test_shards_of_a_backend_are_done_together() -> None:
    one, two = BatchShare(BATCH, 10), BatchShare(BATCH, 20)
    other = BatchShare(batch("other"), 10)
    for minutes in (10, 20, 40):
        assert done_by([one, two], minutes * MINUTE) == one.by(minutes * MINUTE)
        assert done_by([one, other], minutes * MINUTE) == pytest.approx(one.by(minutes * MINUTE) ** 2)


def test_no_dithering_where_nothing_holds() -> None:
    """Either option has a little more than it surely does, and the other cannot take it."""
    gpu = replace(IDLE, pace=replace(IDLE.pace, spread=0.05))
    realtime = replace(REALTIME, pace=replace(REALTIME.pace, spread=0.05))
    decision = replan(Open(synchronous=(("gpu", 3200), ("realtime", 25_200))), [gpu, realtime], TERMS, at(3))
    assert decision.sends == ()
    assert decision.reason.startswith("nothing is more likely to be in time")
    much = replan(Open(synchronous=(("gpu", 14_000), ("realtime", 25_200))), [gpu, realtime], TERMS, at(3))
    assert much.sends


def test_when_it_is_late_a_small_gain_moves_nothing() -> None:
    sync_options = [IDLE, REALTIME, synchronous("flex", "0.0006", 1.0)]
    just = at(4) + timedelta(seconds=1)
    assert replan(Open(synchronous=(("gpu", 60), ("realtime", 500))), sync_options, TERMS, just).sends == ()
    assert replan(Open(synchronous=(("gpu", 600), ("realtime", 500))), sync_options, TERMS, just).sends


@pytest.mark.long
def test_rows_leave_a_option_only_for_a_batch_that_is_likely_to_be_done() -> None:
    sent = 0
    for minutes in range(60, 240):
        decision = replan(Open(synchronous=(("gpu", 5000),)), [BATCH, dead(IDLE), REALTIME], TERMS, at(minutes / 60))
        if any(send.backend == "openai" for send in decision.sends):
            sent += 1
            assert decision.reroute is not None
            assert decision.reroute.needed <= 0.5
    assert 60 < sent < 165


def test_it_looks_again_before_a_option_is_past_help() -> None:
    hours = 1.0
    held = Open(synchronous=(("gpu", 8000),))
    while not (decision := replan(held, [still(IDLE), REALTIME], TERMS, at(hours))).sends:
        hours = (decision.next_look - NOW) / timedelta(hours=1)
    assert decision.chance >= 0.99
    assert 3.2 < hours < 3.75


def test_what_stays_in_its_option_after_all_is_no_move() -> None:
    """The quota takes 1,250 of the 2,000 rows that the GPU will not do."""
    gpu = replace(IDLE, pace=replace(IDLE.pace, spread=0.5))
    quick = batch(seconds=5 * MINUTE, room=60)
    decision = replan(Open(synchronous=(("gpu", 5000),)), [quick, gpu], TERMS, at(4 - 3000 / HOUR))
    assert decision.sends in ((), (Send(1250, "openai", "gpu"),))


def test_what_a_option_will_not_do_may_be_what_the_budget_pays_for() -> None:
    gpu = synchronous("gpu", "0.001", 0.5, spread=0.05)
    budget = replace(TERMS, budget=Decimal("8.5"))
    decision = replan(Open(synchronous=(("gpu", 8000),)), [BATCH, gpu], budget, at(1))
    assert decision.sends == (Send(2600, "openai", "gpu"),)


def test_a_option_beyond_the_budget_is_helped_by_none() -> None:
    """The dearer one holds more than it does; the cheap one could take it, and the budget pays for no more moves."""
    slow = synchronous("slow", "0.001", 0.1, spread=0.05)
    sync_options = capacity([GPU, slow], HOUR, 0.99)
    assert sync_options.chance(0, (0, 1000), 0.0, 2) > 0.99
    assert sync_options.chance(0, (0, 1000), 0.0, 1) < 0.01
    assert sync_options.chance(0, (2000, 300), 0.0, 1) > 0.99


@pytest.mark.parametrize("minutes", [9, 5, 1])
def test_a_rescue_that_comes_a_little_late_is_better_than_next_to_no_chance(minutes: int) -> None:
    """A look slipped: what a cancel may take is longer than what is left, and the batch will hardly end by itself."""
    decision = replan(Open(running=running(8000)), OPTIONS, TERMS, TERMS.deadline - timedelta(minutes=minutes))
    assert decision.cancel == ("b0",)
    assert decision.chance < 0.1


# --- looks, and outages that end


def test_a_reroute_that_would_come_too_late_does_not_put_off_the_next_look() -> None:
    """Where nothing holds, the likeliest reroute may be behind the deadline; changes until then are still seen."""
    slow = synchronous("gpu", "0.0006", 0.117, spread=0.3)
    for minutes in range(1, 230, 5):
        now = at(minutes / 60)
        found = replan(Open(running=running(1500, 1500)), [OPTIONS[0], slow], TERMS, now)
        left = (TERMS.deadline - now).total_seconds()
        assert (found.next_look - now).total_seconds() <= max(30.0, left / 8)


def test_an_outage_that_is_over_long_before_the_deadline_is_no_failure() -> None:
    """Refusals of ten minutes every half hour: they matter where there is no time for them."""

    def told(hours: float, outage: float) -> float:
        steady = synchronous("flex", "0.0006", 4.0, spread=0.1)
        flex = replace(steady, pace=replace(steady.pace, hazard=2.0, outage=outage))
        return replan(Open(synchronous=(("flex", 4000),)), [flex], TERMS, at(4.0 - hours)).chance

    assert told(3.8, 600.0) > 0.99
    assert told(3.8, 600.0) > told(1.0, 600.0) > told(0.4, 600.0)
    assert told(3.8, 600.0) > told(3.8, 3600.0) > told(3.8, 36_000.0)
    assert told(3.8, 360_000.0) < 0.7


def test_where_a_usual_cancel_is_quick_enough_all_are_cancelled_though_the_slowest_would_come_too_late() -> None:
    """One that took 50 minutes must not keep the others waiting for batches that are not going to end."""
    stuck = batch(seconds=20 * MINUTE, cancel_seconds=50 * MINUTE, cancel_usual=12 * MINUTE)
    job = Open(running=running(2000, 2000, 2000, sent=-5.0))
    decision = replan(job, [stuck, REALTIME], Terms(at(0.45), margin=0.0), NOW)
    assert len(decision.cancel) == 3
    assert 0.3 <= decision.chance <= 0.5
    last = replan(job, [stuck, REALTIME], Terms(at(0.38), margin=0.0), NOW)
    assert (len(last.cancel), last.chance > 0.05) == (3, True), "a minute later there would be no chance"
    known = replan(job, [replace(stuck, cancel_usual=None), REALTIME], Terms(at(0.45), margin=0.0), NOW)
    assert known.chance < 0.1
    late = replan(job, [replace(stuck, cancel_usual=44 * MINUTE), REALTIME], Terms(at(0.45), margin=0.0), NOW)
    assert late.chance < 0.1
