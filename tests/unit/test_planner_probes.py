"""Probes: when one is due, to which route, how many rows; and that none endangers a deadline or a budget."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.policy.forecast import turnaround
from orchestrator.policy.planner import (
    Decision,
    Open,
    Option,
    Probe,
    ProbeRule,
    Running,
    Terms,
    choose_probe,
    replan,
)
from orchestrator.policy.planner.measuring import MAX_CHANCE_LOSS
from tests.unit.test_planner import BATCH, GPU, HOUR, NOW, REALTIME, batch, synchronous, terms
from tests.unit.test_planner_properties import BUDGETS, HOURS, OPTIONS, ROWS

RULE = ProbeRule()
DAY = timedelta(days=1)
LONG_AGO, LATELY = NOW - 12 * DAY, NOW - 2 * DAY
JOB = Open(waiting=8000)
DEAR = synchronous("gpu", "0.001", 2.0, location="local")
SURE_BATCH = batch(seconds=20 * 60.0)
GUESSED = batch(turnaround=turnaround([], rows=600, at=NOW))


def found(options: list[Option], rule: ProbeRule = RULE, **last: datetime) -> tuple[Probe, Decision] | None:
    return choose_probe(JOB, options, terms(8), NOW, rule, last)


def test_a_route_that_a_reroute_would_need_and_nobody_used_for_long_gets_a_few_rows() -> None:
    at = found([SURE_BATCH, DEAR], openai=LATELY, gpu=LONG_AGO)
    assert at is not None
    probe, decision = at
    assert (probe.backend, probe.rows) == ("gpu", 166), "5 % of $4.00, at $0.0012 a row"
    assert probe.at_most == Decimal("0.1992")
    assert probe.reason == "a probe: not used for 12 d, so its speed is measured; costs at most $0.1992"
    assert [(send.backend, send.rows) for send in decision.sends] == [("gpu", 166), ("openai", 7834)]
    assert decision.chance >= 0.99


NOT_DUE: dict[str, tuple[list[Option], Open, Terms, dict[str, datetime]]] = {
    "it was used lately": ([SURE_BATCH, DEAR], JOB, terms(8), {"openai": LATELY, "gpu": LATELY}),
    "it is used anyway": ([BATCH, REALTIME, GPU], JOB, terms(8), {"openai": LATELY, "realtime": LATELY}),
    "too few rows for the money": ([SURE_BATCH, DEAR], Open(waiting=900), terms(8), {"openai": LATELY}),
    "it may not take the job": (
        [SURE_BATCH, REALTIME, replace(DEAR, objection="not allowed")], JOB, terms(8),
        {"openai": LATELY, "realtime": LATELY},
    ),
    "it is not local": ([GPU, REALTIME], JOB, replace(terms(8), local_only=True), {"gpu": LATELY}),
    "it stands still": (
        [SURE_BATCH, REALTIME, synchronous("gpu", "0.0009", 0.0)],
        JOB,
        terms(8),
        {"openai": LATELY, "realtime": LATELY},
    ),
    "the provider is silent": (
        [SURE_BATCH, REALTIME, batch("azure", "0.0006", silent=2000.0)], JOB, terms(8),
        {"openai": LATELY, "realtime": LATELY},
    ),
    "there is no slack": ([SURE_BATCH, DEAR], JOB, terms(0.9), {"openai": LATELY}),
    "the deadline is not kept as it is": ([batch(seconds=3 * HOUR), DEAR], JOB, terms(0.5), {"openai": LATELY}),
    "the budget has nothing to spare": (
        [BATCH, synchronous("tier", "0.01", 9.0)], JOB, terms(100, "4.8"), {"openai": LATELY},
    ),
    "nothing else could take its rows back": (
        [SURE_BATCH, synchronous("cpu", "0.002", 0.05, location="local")],
        JOB,
        terms(30),
        {"openai": LATELY},
    ),
    "two providers are less sure than one": (
        [GUESSED, replace(GUESSED, backend="azure"), synchronous("tier", "0.0005", 0.05, spread=1.0)],
        replace(JOB, waiting=600),
        replace(terms(20), target=0.9),
        {"openai": LATELY, "tier": LATELY},
    ),
    "the job has begun": (
        [SURE_BATCH, DEAR], replace(JOB, running=(Running("b", "openai", 10, NOW),)), terms(8), {"openai": LATELY},
    ),
    "rows come back": ([SURE_BATCH, DEAR], replace(JOB, rerouted=5), terms(8), {"openai": LATELY}),
    "no row waits": ([SURE_BATCH, DEAR], Open(), terms(8), {}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "job", "asked", "last"), NOT_DUE.values(), ids=NOT_DUE.keys())
def test_no_probe_where(options: list[Option], job: Open, asked: Terms, last: dict[str, datetime]) -> None:
    assert choose_probe(job, options, asked, NOW, RULE, last) is None


def test_a_route_never_used_is_the_longest_unused_and_one_needed_for_a_reroute_goes_first() -> None:
    tier = synchronous("tier", "0.0011", 9.0)
    other = synchronous("other", "0.0012", 9.0)
    options: list[Option] = [SURE_BATCH, DEAR, tier, other]
    needed = replan(JOB, options, terms(8), NOW).reroute
    assert needed is not None
    assert needed.to == ("gpu", "tier")
    for last, expected in (
        ({"gpu": LONG_AGO}, "tier"),
        ({"gpu": LONG_AGO, "tier": LATELY}, "gpu"),
        ({"gpu": LATELY, "tier": LATELY}, "other"),
    ):
        at = choose_probe(JOB, options, terms(8), NOW, RULE, {"openai": LATELY, **last})
        assert at is not None
        assert at[0].backend == expected
        assert ("never used" in at[0].reason) == (expected not in last)


def test_another_provider_is_probed_by_a_batch_within_its_quota() -> None:
    at = found([BATCH, REALTIME, batch("azure", "0.00055", room=50)], openai=LATELY, realtime=LATELY)
    assert at is not None
    assert (at[0].backend, at[0].rows) == ("azure", 50)
    full = batch("azure", "0.00055", room=50, behind=40)
    assert found([BATCH, REALTIME, full], openai=LATELY, realtime=LATELY) is None
    large = batch("azure", "0.00055", room=50, least=51)
    assert found([BATCH, REALTIME, large], openai=LATELY, realtime=LATELY) is None, "its batches have more rows"


def test_a_longer_or_shorter_wait_and_share_are_the_operators() -> None:
    assert found([SURE_BATCH, DEAR], rule=ProbeRule(after=13 * 86_400.0), openai=LATELY, gpu=LONG_AGO) is None
    more = found([SURE_BATCH, DEAR], rule=ProbeRule(share=0.01), openai=LATELY, gpu=LONG_AGO)
    assert more is not None
    assert more[0].rows == 33


@pytest.mark.long
@given(
    ROWS,
    OPTIONS,
    HOURS,
    BUDGETS,
    st.floats(0.001, 0.1),
    st.dictionaries(st.sampled_from(["batch0", "batch1", "sync0", "sync1", "sync2"]), st.floats(0, 30), max_size=5),
)
def test_whatever_is_probed_costs_no_more_than_its_share_and_no_deadline(
    rows: int, options: list[Option], hours: float, budget: Decimal | None, share: float, ages: dict[str, float]
) -> None:
    asked, rule = terms(hours, None if budget is None else str(budget)), ProbeRule(share=share)
    last = {name: NOW - age * DAY for name, age in ages.items()}
    at = choose_probe(Open(waiting=rows), options, asked, NOW, rule, last)
    plain = replan(Open(waiting=rows), options, asked, NOW)
    if at is None:
        return
    probe, decision = at
    if probe is None:  # nothing is choose_probe, but rows wait for one that is a guess
        assert decision.chance >= min(asked.target, plain.chance - MAX_CHANCE_LOSS) - 1e-9
        return
    option = next(one for one in options if one.backend == probe.backend)
    assert 20 <= probe.rows <= rows * 0.05
    assert probe.at_most <= Decimal(repr(share)) * plain.expected
    assert ages.get(probe.backend, 99) >= 7
    assert decision.sends[0].rows == probe.rows
    assert decision.sends[0].backend == probe.backend
    assert sum(send.rows for send in decision.sends) == rows
    assert all(send.backend != probe.backend for send in decision.sends[1:])
    assert not decision.cancel
    assert decision.chance >= asked.target
    assert budget is None or _most(decision, options) <= budget
    # Whatever becomes of it: its rows come back at half of the time, to what is left.
    left = [one for one in options if one is not option]
    if plain.reroute is None or option.backend not in plain.reroute.to:
        half = NOW + (asked.deadline - NOW) / 2
        without = Open(waiting=rows - probe.rows, coming=probe.rows, coming_at=half)
        assert replan(without, left, asked, NOW).chance >= asked.target


def _most(decision: Decision, options: list[Option]) -> Decimal:
    cost = {one.backend: one.cost.p95 for one in options}
    return sum((cost[send.backend] * send.rows for send in decision.sends), Decimal(0))
