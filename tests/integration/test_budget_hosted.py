"""Budgets that jobs share, before a hosted backend: batches wait for each other, and for the next month."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.hostedjob import DAY, Desk, all_are, plain

AMOUNT = "0.0075"
MONTHLY = f'[[budgets]]\nname = "all"\namount = {AMOUNT}\nperiod = "month"\n'


def test_jobs_that_share_a_budget_take_turns(desk: Desk) -> None:
    desk.backends({"openai": {}}, MONTHLY + "warn_at = 0.01\n")
    one = desk.submit(plain(10, max_tokens=50))
    two = desk.submit(plain(10, max_tokens=49))
    desk.settle(one, two)
    assert desk.states(one) == ["submitted (validating)"]
    assert desk.states(two) == ["pending (None)"], "10 answers of 49 tokens at $8 a million beside as many"
    [held] = desk.held(two)
    assert f"$0 of the ${AMOUNT} of budget all for the month is spent, up to $0.00" in held
    assert len(desk.events(two, "held")) == 1
    desk.finish(one, two)
    assert desk.ends(two) == all_are("succeeded", 10)
    assert desk.cost(one) + desk.cost(two) <= Decimal(AMOUNT)
    [told] = desk.events(two, "budget")
    assert told.startswith("budget all, month until ")


@pytest.mark.long
def test_what_a_month_has_no_room_for_goes_in_the_next(desk: Desk) -> None:
    desk.backends({"openai": {}}, MONTHLY)
    spent, one = Decimal(0), desk.run(plain(10, max_tokens=50))
    while not desk.held(one):
        spent += desk.cost(one)
        one = desk.submit(plain(10, max_tokens=50), new=True)
        desk.settle(one)
        if not desk.held(one):
            desk.finish(one)
    assert "when the budget renews at" in desk.held(one)[0]
    assert spent <= Decimal(AMOUNT)
    desk.later(32 * DAY, one)
    desk.finish(one)
    assert desk.ends(one) == all_are("succeeded", 10)
