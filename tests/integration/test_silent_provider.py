"""A provider that says nothing for hours: what it holds up, and what it does not."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.shards import ShardState
from orchestrator.daemon.loop import Daemon
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import Orch
from tests.support.hostedjob import HOUR, KEY, MINUTE, Desk, all_are, plain, row, settings_of, write_toml
from tests.support.process import PATIENCE, wait_until

VERBS = ["upload", "create", "retrieve", "list", "content", "cancel", "models", "delete_file"]
HANGS = 600.0
"""Seconds for which a call may be silent here: longer than any test lasts."""


def silent(provider: Emulator, flavour: str, how: str = "hang_before") -> None:
    """From now on this provider takes every call, and answers none."""
    faults = [{"do": how, "match": {"verb": verb, "flavour": flavour}, "times": None} for verb in VERBS]
    provider.script(*faults)


def returned(provider: Emulator, verbs: Container[str] = VERBS) -> int:
    """How many calls came back without an answer: their client had enough of them."""
    counted = (one for one in provider.state()["requests"] if one["verb"] in verbs)
    return sum(entry["count"] for entry in counted if entry["status"] == 0)


def returned_by_the_end(desk: Desk, done: Callable[[], bool], verbs: Container[str] = VERBS) -> int:
    """Run the daemon, with threads of its own, until it is done; how many calls had come back by then.

    They are counted while it runs: its end hangs up on those that are still under way.
    """
    over = time.monotonic() + PATIENCE
    with Daemon(desk.config, desk.store) as daemon:
        daemon.run(lambda: done() or time.monotonic() > over)
        return returned(desk.provider, verbs)


def test_a_silent_provider_holds_up_no_other_job(desk: Desk) -> None:
    desk.backends({"openai": {"request_timeout": HANGS}, "azure": {}})
    desk.provider.clock.set(speed=1200.0)
    silent(desk.provider, "openai")
    stuck = desk.submit([row("stuck")], backend="openai")
    free = desk.submit(plain(3), backend="azure")
    came_back = returned_by_the_end(desk, lambda: desk.is_over(free))
    assert desk.ends(free) == all_are("succeeded", 3)
    assert not desk.is_over(stuck)
    assert came_back == 0, "the call that hangs has not come back yet: nobody waited for it"


@pytest.mark.long
def test_a_silent_provider_holds_up_no_other_batch_of_the_same_job(desk: Desk) -> None:
    desk.backends({"openai": {"request_timeout": HANGS}, "azure": {}})
    job = desk.submit(plain(4), backend="openai")
    desk.settle(job)
    # The other half goes to the other backend, as a reroute or a split would send it.
    [shard] = desk.store.shards.of_job(job.id)
    assert shard.state is ShardState.SUBMITTED
    silent(desk.provider, "openai")
    other = desk.submit([row("other")], backend="azure")
    desk.provider.clock.set(speed=1200.0)
    assert returned_by_the_end(desk, lambda: desk.is_over(other)) == 0
    assert desk.ends(other) == {"other": "succeeded"}


@pytest.mark.long
def test_one_transfer_that_hangs_holds_up_no_other_batch_of_its_backend(desk: Desk) -> None:
    desk.backends({"openai": {"request_timeout": HANGS, "limits": {"max_rows": 1}}})
    job = desk.submit(plain(3))
    desk.settle(job)
    desk.provider.script({"do": "hang_before", "match": {"verb": "content"}, "times": 1})
    desk.provider.clock.set(speed=1200.0)
    # Calls that are short have 30 s, which a machine may stand still for.
    assert returned_by_the_end(desk, lambda: desk.detail(job)["requests"]["succeeded"] == 2, {"content"}) == 0
    assert sorted(end == "succeeded" for end in desk.ends(job).values()) == [False, True, True]


@pytest.mark.long
def test_rows_of_an_unreachable_batch_are_rescued_in_time_and_what_it_did_is_booked(desk: Desk) -> None:
    desk.backends({"azure": {"poll_seconds": 10}})
    for number in range(12):
        desk.run([row(f"earlier{number}")])
    desk.backends({"azure": {"poll_seconds": 10}, "flex": {"service_tier": "default"}})
    desk.provider.settings(turnaround_s=[3 * HOUR, 3 * HOUR])
    job = desk.submit(plain(6), deadline="3h")
    desk.settle(job)
    assert desk.store.shards.of_job(job.id)[0].backend == "azure"
    desk.later(5 * MINUTE, job)
    silent(desk.provider, "azure", "reset_before")
    while len(desk.store.shards.of_job(job.id)) == 1:
        desk.later(MINUTE, job)
    desk.provider.clock.set(speed=5.0)
    wait_until(lambda: not desk.settle(job) and desk.is_over(job))  # its rows run in real time
    assert desk.ends(job) == all_are("succeeded", 6)
    assert [shard["backend"] for shard in desk.detail(job)["shards"]][-1] == "flex"
    assert any("its rows are needed in time" in text for text in desk.events(job, "ended"))
    current = desk.store.jobs.get(job.id)
    assert current.finished_at is not None
    assert current.deadline_at is not None
    assert current.finished_at < current.deadline_at


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["status", "reset_before"])
def test_rows_stay_at_a_provider_that_is_away_for_hours_while_there_is_time(desk: Desk, how: str) -> None:
    """The other API needs minutes, so to wait loses nothing, and what the first has done is paid once."""
    desk.backends({"azure": {"poll_seconds": 10}, "flex": {"service_tier": "default"}})
    desk.provider.settings(turnaround_s=[2 * HOUR, 2 * HOUR])
    job = desk.submit(plain(6), deadline="40h")
    desk.settle(job)
    desk.later(5 * MINUTE, job)
    told = {"status": 503} if how == "status" else {}
    faults = [{"do": how, "match": {"verb": verb, "flavour": "azure"}, "times": None, **told} for verb in VERBS]
    desk.provider.script(*faults)
    for _ in range(14 * 6):
        desk.later(10 * MINUTE, job)
    [shard] = desk.detail(job)["shards"]
    assert (shard["backend"], desk.events(job, "rerouted")) == ("azure", [])
    desk.provider.clear()
    desk.finish(job)
    assert desk.ends(job) == all_are("succeeded", 6)
    assert desk.billed() == dict.fromkeys(all_are("", 6), 1)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["slow_cancel", "cancel_ignored"])
def test_rows_of_a_cancel_that_takes_days_are_asked_elsewhere_in_time(desk: Desk, fault: str) -> None:
    """The provider answers each poll, and its batch does not end. What it has done is booked there as well."""
    desk.backends({"openai": {"poll_seconds": 10}, "flex": {"service_tier": "default"}})
    desk.provider.settings(turnaround_s=[80 * HOUR, 80 * HOUR])
    told = {"seconds": 90 * 24 * HOUR} if fault == "slow_cancel" else {}
    desk.provider.script({"do": fault, "times": None, **told})
    job = desk.submit(plain(6), deadline="3h")
    deadline = desk.store.jobs.get(job.id).deadline_at
    assert deadline is not None
    desk.settle(job)
    [first] = desk.store.shards.of_job(job.id)
    assert first.backend == "openai"
    while len(desk.store.shards.of_job(job.id)) == 1 and now() < deadline:
        desk.later(2 * MINUTE, job)
    desk.provider.clock.set(speed=5.0)
    wait_until(lambda: not desk.settle(job) and desk.is_over(job))  # its rows run in real time
    assert desk.ends(job) == all_are("succeeded", 6)
    assert any("its cancel takes too long" in text for text in desk.events(job, "ended"))
    finished = desk.store.jobs.get(job.id).finished_at
    assert finished is not None
    assert finished < deadline


# --- a shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[tuple[Orch, Emulator, dict[str, str]]]:
    """A home whose one provider is silent."""
    orch = Orch(tmp_path / "home")
    orch.home.mkdir()
    with Emulator(tmp_path / "provider") as provider:
        told: dict[str, Any] = settings_of(provider, "openai", request_timeout=HANGS)
        write_toml(orch.home / "orch.toml", {"openai": told})
        (tmp_path / "rows.jsonl").write_bytes(jsonl(plain(3)))
        yield orch, provider, {**provider.environment, "OPENAI_KEY": KEY}
    orch.close()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["up", "run"])
def test_a_daemon_stops_at_once_though_a_call_hangs(
    shell: tuple[Orch, Emulator, dict[str, str]], tmp_path: Path, command: str, number: int
) -> None:
    orch, provider, env = shell
    silent(provider, "openai")
    rows = str(tmp_path / "rows.jsonl")
    if command == "up":
        assert orch("submit", rows, env=env).returncode == 0
    process = orch.start(*(["up"] if command == "up" else ["run", rows]), env=env)
    wait_until(lambda: any(one["seen"] for one in provider.state()["script"]))
    process.send_signal(number)
    assert process.wait(PATIENCE) == (0 if command == "up" else 130)
    assert "left in a call that does not return" in (orch.home / "engine.log").read_text()


@pytest.mark.long
def test_a_cancel_ends_and_says_what_is_left_to_do_where_the_provider_is_silent(
    shell: tuple[Orch, Emulator, dict[str, str]], tmp_path: Path
) -> None:
    orch, provider, env = shell
    process = orch.start("run", str(tmp_path / "rows.jsonl"), env=env)
    [job] = wait_until(lambda: json.loads(orch("status", "--json", env=env).stdout or "[]"), 60)
    named = job["job"]

    def states() -> list[str]:
        told = json.loads(orch("status", named, "--json", env=env).stdout)
        return [shard["state"] for shard in told["shards"]]

    wait_until(lambda: states() == ["submitted"], 60)
    process.terminate()
    process.wait(PATIENCE)
    silent(provider, "openai")
    write_toml(orch.home / "orch.toml", {"openai": settings_of(provider, "openai", request_timeout=1.0)})
    provider.clock.set(speed=20.0)
    cancelled = orch("cancel", named, env=env, timeout=120)
    assert cancelled.returncode == 4, cancelled.stderr
    told = " ".join(cancelled.stderr.split())
    assert "the cancellation is not complete: openai: cannot ask whose key it is: timed out" in told
    assert "not ended: batch_" in told
    assert "completes it" in cancelled.stderr
    # The order stands: whoever works next carries it out, once the provider speaks again.
    provider.clear()
    provider.clock.set(speed=600.0)
    assert orch("cancel", named, env=env, timeout=120).returncode == 0
    assert json.loads(orch("status", named, "--json", env=env).stdout)["state"] == "cancelled"
