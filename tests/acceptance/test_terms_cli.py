"""Deadlines and budgets that a later command gives an unfinished job of the same file."""

from __future__ import annotations

import pytest

from tests.acceptance.test_hosted import User, emulator, user
from tests.support.hostedjob import plain

__all__ = ["emulator", "user"]


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "command", [("submit",), ("run", "--quiet"), ("submit", "--dry-run"), ("plan",)], ids=" ".join
)
@pytest.mark.parametrize(
    "terms", [("--budget", "0.000001"), ("--deadline", "2020-01-01T00:00+00:00")], ids=["budget", "deadline"]
)
def test_terms_that_cannot_hold_are_refused_and_the_unfinished_job_keeps_its_own(
    user: User, command: tuple[str, ...], terms: tuple[str, str]
) -> None:
    user.backends(openai={})
    path = user.rows(*plain(3))
    job = user("submit", path, "--budget", "1").stdout.split()[0]
    before = user.status(job)
    ran = user(*command, path, *terms)
    assert ran.returncode == 3, ran.stderr
    told = " ".join((ran.stdout + ran.stderr).split())
    if terms[0] == "--deadline":
        assert "--deadline: the deadline 2020-01-01 00:00 UTC has already passed" in told
    else:
        assert "costs more than the budget of $0.000001: expected $0.0" in told
        assert ", at most $0.0" in told
        assert "--budget 0.0" in told, "what would hold"
        keeps = f"job {job} of this file is unfinished and keeps its terms"
        assert (keeps in told) is (command[0] != "plan" and "--dry-run" not in command)
    after = user.status(job)
    assert (after["budget_usd"], after["deadline_at"]) == (before["budget_usd"], before["deadline_at"])
    assert [event["kind"] for event in after["events"]] == [event["kind"] for event in before["events"]]


def test_terms_that_hold_are_said_and_the_same_ones_change_nothing(user: User) -> None:
    user.backends(openai={})
    path = user.rows(*plain(3))
    job = user("submit", path, "--budget", "1").stdout.split()[0]
    lower = user("submit", path, "--budget", "0.5")
    assert (lower.returncode, "it stopped, now with budget $0.50 (was $1.00)" in lower.stderr) == (
        0,
        True,
    )
    assert "now with" not in user("submit", path, "--budget", "0.50").stderr
    revised = [event["reason"] for event in user.status(job)["events"] if event["kind"] == "revised"]
    assert revised == ["budget $0.50 (was $1.00)"]
