"""A route whose price is a guess is measured by a few rows, and dearer rows wait for that while it risks nothing.

The nights are those of `benchmarks.routing`, which share no code with the planner or its forecasts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from benchmarks.routing.judged import JUDGED
from benchmarks.routing.scenarios import Scenario
from benchmarks.routing.table import run
from benchmarks.routing.unseen import UNSEEN
from orchestrator.core.model import ProgressSample
from orchestrator.policy.forecast import Assumed
from orchestrator.policy.planner import (
    Decision,
    Open,
    Option,
    Probe,
    SynchronousOption,
    Terms,
    choose_probe,
    observations,
)
from orchestrator.policy.planner.stints import Sight
from tests.unit.test_planner import BATCH, NOW, synchronous, terms
from tests.unit.test_planner_observations import night_of

JOB = Open(waiting=2_000)
API = synchronous("realtime", "0.001", 4.0, spread=0.3)


def engine(rate: float, spread: float = 1.0, per_hour: str = "4.32", **facts: object) -> SynchronousOption:
    """One that is paid by the hour: at six rows a second it costs a fifth of the API, at 0.6 twice as much."""
    each = Decimal(per_hour) / Decimal(repr(3600 * rate))
    return replace(synchronous("engine", f"{each:f}", rate, spread=spread, location="local"), timed=True, **facts)  # type: ignore[arg-type]


def first(options: list[Option], of: Terms, job: Open = JOB) -> tuple[Probe | None, Decision] | None:
    return choose_probe(job, options, of, NOW, None, {})


def test_a_cheap_engine_that_a_guess_makes_dear_gets_a_few_rows_and_the_others_wait() -> None:
    at = first([API, engine(0.6)], terms(1))
    assert at is not None
    probe, decision = at
    assert probe is not None
    assert (probe.backend, 20 <= probe.rows <= 100) == ("engine", True)
    assert [(send.backend, send.rows) for send in decision.sends] == [("engine", probe.rows)]
    assert decision.chance >= 0.99
    begun = Open(waiting=2_000 - probe.rows, synchronous=(("engine", probe.rows),))
    later = first([API, engine(0.6)], terms(1), begun)
    assert later is not None
    assert (later[0], later[1].sends) == (None, ()), "they wait on"
    assert first([API, engine(6.0, 0.3)], terms(1), begun) is None, "it was measured: nothing waits any more"
    soon = Terms(NOW + timedelta(minutes=14), margin=terms(1).margin)
    assert first([API, engine(0.6)], soon, begun) is None, "and not until it is too late"


@pytest.mark.parametrize(
    ("options", "of"),
    [
        ([API, engine(0.6, 0.35)], terms(1)),
        ([API, engine(0.6, objection="not allowed")], terms(1)),
        ([API, replace(engine(0.6), timed=False)], terms(1)),
        ([API, engine(0.6, per_hour="900")], terms(1)),
        ([API, engine(0.6)], Terms(NOW + timedelta(minutes=14))),
        ([API, engine(0.6)], replace(terms(1), late_cost=Decimal(1))),
        ([API, engine(0.6)], terms(1, "2.21")),
    ],
    ids=[
        "it is stated", "it may not take the job", "its price is known", "it is dear if it is fast",
        "there is no time", "late is money", "the budget has nothing to spare",
    ],
)  # fmt: skip
def test_nothing_is_measured_where_it_does_not_pay_or_is_a_risk(options: list[Option], of: Terms) -> None:
    assert first(options, of) is None


@pytest.mark.parametrize(("per_hour", "sent"), [("4.32", 0), ("9", 2_000)], ids=["it may be cheaper", "it is not"])
def test_batches_wait_where_the_engine_may_be_cheaper(per_hour: str, sent: int) -> None:
    """At six rows a second the first engine costs two fifths of a batch: what is in a batch would not come back."""
    at = first([BATCH, API, engine(0.6, per_hour=per_hour)], terms(8))
    assert (at is None) == (sent > 0)
    if at is not None:
        assert at[0] is not None
        assert {send.backend for send in at[1].sends} == {"engine"}


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("world", [JUDGED["judged-loading"], UNSEEN["cold"]], ids=lambda one: one.name)
def test_first_nights_cost_little_more_than_those_of_who_knows_the_engine(world: Scenario) -> None:
    """Without it, the first of these costs five times as much."""
    result = run(world, 1, 6, alone=True)
    assert result.ours.in_time == 1.0
    assert result.ours.cost <= 1.05


def test_an_engine_that_loads_longer_than_thought_is_waited_for_and_not_for_ever() -> None:
    """It has rows and does nothing: it may still load, or be dead."""
    loads = replace(engine(0.6), pace=replace(engine(0.6).pace, rate=0.0))
    begun = Open(waiting=1_931, synchronous=(("engine", 69),))
    at = first([API, loads], terms(1), begun)
    assert at is not None
    assert at[1].sends == ()
    assert first([API, loads], Terms(NOW + timedelta(minutes=14), margin=terms(1).margin), begun) is None


@pytest.mark.parametrize("seen", [0, 28], ids=["between two looks", "and a look falls in between"])
@pytest.mark.parametrize("loads", [60, 360])
def test_a_few_rows_that_were_done_at_once_tell_how_fast_it_is(loads: int, seen: int) -> None:
    """An engine loads for minutes, is looked at all the time, and then does all it has within seconds."""
    sent = NOW - timedelta(minutes=10)
    first_at = sent + timedelta(seconds=loads)
    one = replace(
        night_of(0, 66, 0.0), submitted_at=sent, first_at=first_at, ended_at=first_at + timedelta(seconds=11)
    )  # fmt: skip

    def look(at: datetime, done: int) -> ProgressSample:
        return ProgressSample(one.job_id, "s", "gpu", at, done, 66 - done)

    looks = [look(sent + timedelta(minutes=minute), 0) for minute in range(loads // 60)]
    looks += [look(first_at + timedelta(seconds=5), seen)] if seen else []
    found = observations.pace(
        Sight("gpu", [one], looks), observations.Asker("s"), Assumed(0.6, 1.0), 0.0, NOW
    )  # fmt: skip
    assert found.rate == pytest.approx(6.0, rel=0.25)
    assert found.spread < 0.5
