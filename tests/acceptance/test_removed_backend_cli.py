"""`orch cancel` of a job whose backend has left orch.toml."""

from __future__ import annotations

import json
import re

import pytest

from tests.acceptance.test_hosted import User, emulator, user
from tests.support.cli import CONFIG
from tests.support.hostedjob import cost_of, plain
from tests.support.process import PATIENCE, wait_until

__all__ = ["emulator", "user"]


@pytest.fixture
def job(user: User) -> str:
    """A job with a batch of two rows at openai, and two rows that wait behind a quota."""
    user.backends(openai={"limits": {"max_rows": 2, "enqueued_tokens": 100}}, azure={})
    user.provider.clock.set(speed=1.0)
    running = user.orch.start("run", user.rows(*plain(4)), "--backend", "openai", env=user.env)

    def name() -> str | None:
        found = json.loads(user("status", "--json").stdout)
        held = [one["held_code"] for one in user.status(found[0]["job"])["shards"]] if found else []
        return found[0]["job"] if "admission" in held else None

    job = wait_until(name, PATIENCE)
    running.send_signal(2)
    running.wait(PATIENCE)
    return str(job)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("daemon", [False, True], ids=["here", "by the daemon"])
def test_it_ends_what_it_can_and_names_the_batch_that_goes_on(user: User, job: str, daemon: bool) -> None:
    [batch] = user.provider.state()["batches"]
    user.backends(azure={})
    if daemon:
        user.orch.start("up", env=user.env)
    for _ in range(2):  # said again each time
        ran = user("cancel", job)
        assert ran.returncode == 4
        told = " ".join(ran.stderr.split())
        assert "backend openai is no longer in" in told
        assert f"not ended: {batch['id']} of 2 rows at openai" in told
        assert f"put it back, then run `orch cancel {job}` again" in told
        assert f"by its plan; its rows stay pending until orch can collect it. `orch cancel {job} --abandon`" in told
    wait_until(lambda: user.status(job)["requests"]["cancelled"] == 2, PATIENCE)  # no batch had them
    found = user.status(job)
    assert (found["state"], found["requests"]["pending"]) == ("cancelling", 2)
    assert [shard["held_code"] for shard in found["shards"] if shard["batch_id"]] == ["removed"]
    compared = user("reconcile")
    assert (compared.returncode, "1 batch there not compared" in compared.stderr) == (1, True)
    user.backends(openai={}, azure={})
    user.provider.clock.set(speed=1200.0)
    ended = user("cancel", job)
    assert ended.returncode == 0, ended.stderr
    found = user.status(job)
    assert (found["state"], found["requests"]["pending"]) == ("cancelled", 0)
    assert len(user.provider.state()["batches"]) == 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("daemon", [False, True], ids=["here", "by the daemon"])
def test_a_batch_whose_backend_never_returns_can_be_given_up(user: User, job: str, daemon: bool) -> None:
    user.backends(azure={})
    if daemon:
        user.orch.start("up", env=user.env)
    ran = user("cancel", job, "--abandon")
    assert ran.returncode == 0, ran.stderr
    told = " ".join(ran.stderr.split())
    [likely] = re.findall(
        r"2 rows given up; their batches may continue and be billed, about \$([\d.]+) by its plan", told
    )
    found = user.status(job)
    assert (found["state"], found["requests"]["cancelled"], found["requests"]["pending"]) == ("cancelled", 4, 0)
    assert "no longer has" not in user("status").stdout
    total = json.loads(user("report", "cost", "--json").stdout)["total"]
    assert total["cost_usd"] == total["uncertain_usd"]
    assert float(total["cost_usd"]) == pytest.approx(float(likely), rel=0.1)


def test_a_budget_counts_a_batch_that_is_given_up(user: User, job: str) -> None:
    user.backends(azure={})
    with (user.orch.home / CONFIG).open("a") as config:
        config.write('\n[[budgets]]\nname = "all"\namount = 50\nperiod = "month"\n')
    [before] = json.loads(user("budget", "--json").stdout)
    assert "orch.toml has no openai" in before["problem"]
    assert user("cancel", job, "--abandon").returncode == 0
    [after] = json.loads(user("budget", "--json").stdout)
    assert (after["problem"], float(after["spent_usd"]) > 0) == (None, True)


@pytest.mark.long
def test_a_backend_that_returns_has_the_batch_ended_and_its_answers_booked(user: User, job: str) -> None:
    user.backends(azure={})
    assert user("cancel", job, "--abandon").returncode == 0
    user.provider.clock.set(speed=600.0)
    wait_until(lambda: user.provider.state()["batches"][0]["status"] == "completed", PATIENCE)
    user.backends(openai={}, azure={})
    user.orch.start("up", env=user.env)
    wait_until(lambda: any(one["kind"] == "late" for one in user.status(job)["events"]), PATIENCE)
    total = json.loads(user("report", "cost", "--json").stdout)["total"]
    assert float(total["uncertain_usd"]) == 0
    assert float(total["cost_usd"]) == pytest.approx(float(cost_of(user.provider.bill())))
