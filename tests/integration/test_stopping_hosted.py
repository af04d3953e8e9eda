"""Ctrl-C while a hosted batch runs: a user learns that it goes on, how to follow it, and how to end it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.cli import Orch
from tests.support.hostedjob import HOUR, KEY, plain, settings_of, write_toml
from tests.support.process import wait_until


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Emulator]:
    """A provider whose batches take an hour, and a file of three rows for it."""
    with Emulator(tmp_path / "provider") as found:
        found.settings(turnaround_s=[HOUR, HOUR])
        (tmp_path / "rows.jsonl").write_bytes(jsonl(plain(3)))
        yield found


@pytest.fixture
def orch(tmp_path: Path, provider: Emulator) -> Iterator[Orch]:
    made = Orch(tmp_path / "home")
    made.home.mkdir()
    write_toml(made.home / "orch.toml", {"openai": settings_of(provider, "openai")})
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_says_that_its_batch_goes_on(
    orch: Orch, provider: Emulator, tmp_path: Path, number: int
) -> None:
    env = {**provider.environment, "OPENAI_KEY": KEY}
    rows = str(tmp_path / "rows.jsonl")
    process = orch.start("run", rows, env=env)
    wait_until(lambda: provider.state()["batches"], 60)

    def shards() -> list[str]:
        [job] = json.loads(orch("status", "--json", env=env).stdout)
        return [one["state"] for one in json.loads(orch("status", job["job"], "--json", env=env).stdout)["shards"]]

    wait_until(lambda: shards() == ["submitted"], 60)
    process.send_signal(number)
    assert process.wait(60) == 130
    [job] = json.loads(orch("status", "--json", env=env).stdout)
    told = " ".join(orch.output(process).split())
    assert (
        "stopped here, but 1 batch of 3 rows continues at openai and will be billed; run the same command again"
        in told
    )
    assert f"follow it: `orch status {job['job']}`; end it: `orch cancel {job['job']}`" in told
    cancelling = orch.start("cancel", job["job"], env=env)
    # The hour of the batch begins to pass only now: a slow start of the command would let the batch end before it.
    wait_until(lambda: provider.calls("cancel"), 60)
    assert "waits for the end of 1 batch of 3 rows at openai" in " ".join(orch.output(cancelling).split())
    cancelling.send_signal(number)
    assert cancelling.wait(60) == 130
    told = " ".join(orch.output(cancelling).split())
    assert "stopped here; 1 batch of 3 rows ends at openai, and what it has answered is billed" in told
    assert f"`orch cancel {job['job']}` or `orch up` collects it; follow it: `orch status {job['job']}`" in told
    cancelling = orch.start("cancel", job["job"], env=env)
    provider.clock.set(speed=600.0)
    assert cancelling.wait(120) == 0
    assert {batch["status"] for batch in provider.state()["batches"]} == {"cancelled"}


def test_before_anything_is_sent_nothing_goes_on(orch: Orch, provider: Emulator, tmp_path: Path) -> None:
    provider.script({"do": "hang_before", "match": {"verb": "upload"}, "times": None})
    env = {**provider.environment, "OPENAI_KEY": KEY}
    process = orch.start("run", str(tmp_path / "rows.jsonl"), env=env)
    wait_until(lambda: provider.state()["script"][0]["seen"] > 0, 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    told = orch.output(process)
    assert "stopped; run the same command again to continue" in told
    assert "orch cancel" not in told
