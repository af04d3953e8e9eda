"""A home that nobody used for months plans as soberly as a new one: real processes, a clock of their own."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from tests.emulator.driving import jsonl
from tests.support import stored
from tests.support.cli import CONFIG, Orch
from tests.support.hostedjob import plain, write_toml
from tests.support.process import upstreams

FIRST = datetime(2026, 3, 2, 20, tzinfo=UTC)
ROWS = 40


def rows_file(folder: Path, name: str) -> str:
    """A batch file whose rows are its own."""
    path = folder / f"{name}.jsonl"
    lines = plain(ROWS)
    for line in lines:
        line["body"]["messages"][-1]["content"] += f" ({name})"
    path.write_bytes(jsonl(lines))
    return str(path)


def note_a_night(url: str) -> None:
    """Two hours in which the engine did one row a second."""
    over = FIRST + timedelta(hours=2)
    with Store.open(url) as store:
        night = stored.job("long-ago", home="another", created_at=FIRST)
        store.jobs.add(night, {})
        store.rows.add(night.id, [stored.row(0)], {}, FIRST)
        [found] = stored.ranges(store, night)
        sent = stored.shard(night, rows=7200, created_at=FIRST)
        store.shards.add(sent, found)
        store.shards.move(sent, ShardState.SUBMITTING)
        began = {"submitted_at": FIRST, "first_at": FIRST + timedelta(seconds=5)}
        store.shards.move(store.shards.get(sent.id), ShardState.SUBMITTED, **began)
        store.shards.move(store.shards.get(sent.id), ShardState.ENDED, ended_at=over, provider_completed=7200)
        store.shards.move(store.shards.get(sent.id), ShardState.COLLECTED, collected_at=over)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("idle", [90, 150, 180, 400])
def test_a_home_that_was_idle_for_months_is_no_dearer_than_a_new_one_and_runs(
    run_orch: Orch, tmp_path: Path, database_url: str, idle: int
) -> None:
    def at(days: int) -> dict[str, str]:
        return {"ORCH_NOW": (FIRST + timedelta(days=days)).isoformat(), "ORCH_DATABASE_URL": database_url}

    def at_most(name: str, days: int) -> tuple[Decimal, str]:
        done = run_orch("plan", rows_file(tmp_path, name), "--deadline", "20h", "--json", env=at(days))
        found = json.loads(done.stdout)
        return Decimal(found["at_most_usd"]), found["routes"][0]["reason"]

    with upstreams(tmp_path) as start:
        gpu = {"kind": "local", "upstreams": [start().base_url], "location": "local", "cost_per_hour": 2.0}
        write_toml(run_orch.home / CONFIG, {"gpu": gpu})
        new, _ = at_most("new", 0)
        note_a_night(database_url)
        fresh, reason = at_most("fresh", 1)
        assert "1 night" in reason
        stale, _ = at_most("stale", idle)
        # On the way to the assumed rate and spread, neither the rate nor the spread is beyond both.
        assert stale <= Decimal("1.5") * max(new, fresh)
        for name, terms in (("free", ()), ("due", ("--deadline", "20h"))):
            done = run_orch("run", rows_file(tmp_path, name), *terms, "--quiet", env=at(idle))
            assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
