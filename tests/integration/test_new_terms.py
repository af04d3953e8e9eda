"""Budgets that a later submit gives an unfinished job."""

from __future__ import annotations

from decimal import Decimal

import pytest

from orchestrator.core.errors import RefusedError
from tests.support.hostedjob import Desk, all_are, plain, script


def test_the_budget_that_is_named_counts_what_is_spent(desk: Desk) -> None:
    desk.backends({"openai": {"limits": {"max_rows": 1}}})
    script(desk, "turnaround", verb="create", nth=2, seconds=8 * 3600.0)
    job = desk.submit(plain(3), budget=Decimal(1))
    while not desk.cost(job):
        desk.later(60, job)
    assert not desk.is_over(job)
    path, spent = desk.folder / "rows-1.jsonl", desk.cost(job)
    with pytest.raises(RefusedError, match=r"\$0\.0\d+ is spent; for what is left, ") as refused:
        desk.submit(path, budget=spent)
    named = Decimal(str(refused.value.hint).partition("--budget ")[2].partition(";")[0])
    assert named > spent
    assert desk.submit(path, budget=named).budget == named
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 3)
    assert desk.cost(job) <= named
