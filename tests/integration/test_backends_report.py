"""`report backends` and its page: what is asked first, how requests are spelled, and backends that orch.toml lost."""

from __future__ import annotations

import pytest

from orchestrator.cli import run
from orchestrator.core.clock import now
from orchestrator.reports.backends import backends_report
from tests.support.hostedjob import DAY, HOUR, Desk, plain, script


def test_a_backend_that_left_orch_toml_is_told_as_long_as_it_has_batches(desk: Desk) -> None:
    desk.backends({"openai": {"preflight": True}, "azure": {}})
    job = desk.submit(plain(4), deadline="20h")
    desk.settle(job)
    [shard] = desk.store.shards.of_job(job.id)
    left = "azure" if shard.backend == "openai" else "openai"
    found = {one["backend"]: one for one in backends_report(desk.store, desk.config, lambda name: None, now())}
    assert {name: one["preflight"] for name, one in found.items()} == {"openai": True, "azure": False}
    desk.backend(left)
    one, removed = backends_report(desk.store, desk.config, lambda name: None, now())
    assert (one["backend"], one["state"]) == (left, "hosted")
    assert (removed["backend"], removed["kind"], removed["state"]) == (shard.backend, None, "removed")
    assert "put it back" in removed["problem"]
    assert (removed["batches"], removed["rows"]) == (1, 4)


def test_rows_of_a_day_are_those_of_batches_that_run_too_and_of_what_was_asked_first(desk: Desk) -> None:
    desk.backends({"openai": {"preflight": True}})
    script(desk, "turnaround", seconds=2 * HOUR)
    job = desk.submit(plain(40))
    desk.settle(job)

    def pace() -> tuple[int, float | None]:
        (one,) = backends_report(desk.store, desk.config, lambda name: None, now())
        return one["rows_24h"], one["rows_per_second"]

    assert pace() == (1, None)
    desk.later(HOUR, job)
    rows, rate = pace()
    assert 1 < rows < 40
    assert rate == pytest.approx((rows - 1) / HOUR, abs=0.001)
    desk.finish(job)
    assert pace()[0] == 40
    desk.provider.clock.advance(2 * DAY)
    assert pace() == (0, None)


def test_batches_at_a_backend_that_left_orch_toml_are_told_before_anything_polls_them(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.backends({"openai": {}, "azure": {}})
    job = desk.submit(plain(4), backend="openai")
    desk.settle(job)
    monkeypatch.setenv("ORCH_CONFIG", str(desk.place.path))
    monkeypatch.setenv("ORCH_HOME", str(desk.home.root))
    told = "1 batch of 4 rows is out at openai, which orch.toml no longer has; put it back"

    def said(*command: str) -> str:
        run(list(command))
        return " ".join(capsys.readouterr().out.split())

    commands = (("status",), ("status", str(job.id)), ("doctor",))
    assert not any("no longer has" in said(*command) for command in commands)
    desk.backend("azure")
    for command in commands:
        assert told in said(*command), command
    assert f"BAD job {job.id}" not in said("doctor"), "nothing is wrong with the job itself"
    desk.backends({"openai": {}, "azure": {}})
    assert not any("no longer has" in said(*command) for command in commands)
