"""`orch budget`: what a user reads of budgets, and what a script does."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchestrator.cli import run
from orchestrator.core.shards import ShardState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.emulator.driving import chat_line, jsonl
from tests.support.cli import Orch, write_config
from tests.support.process import Upstream
from tests.support.stored import job, row, settle, sharded, succeeded

NOW = "2026-11-21T20:00:00+00:00"
BUDGETS = """
[[budgets]]
name = "legal"
amount = 120.00
period = "month"
tag = "team=legal"

[[budgets]]
name = "nightly"
amount = 120
period = "night"
night_starts = "18:30"
stop_at = 0.5
"""


def spend(orch: Orch, job_id: str, cost: str, at: datetime) -> None:
    """Book a row of a job of team legal in the home's database."""
    orch.home.mkdir(exist_ok=True)
    with Store.open(f"sqlite:///{orch.home / 'orch.db'}") as store:
        new = job(job_id, home=Home(orch.home).identity())
        store.jobs.add(new, {"team": "legal"})
        store.rows.add(new.id, [row(0)], {}, at)
        settle(store, sharded(store, new, state=ShardState.COLLECTED), succeeded(0, cost), now=at)


def test_it_shows_what_is_left_until_when(run_orch: Orch) -> None:
    write_config(run_orch.home, ["http://127.0.0.1:1/v1"], extra=BUDGETS)
    now = datetime.fromisoformat(NOW)
    spend(run_orch, "yesterday", "38.2", now - timedelta(days=1))
    spend(run_orch, "tonight", "60", now)
    env = {"TZ": "UTC", "ORCH_NOW": NOW}
    shown = run_orch("budget", env=env)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.splitlines() == [
        "legal: warning, 82% of $120.00 for the month until 2026-12-01 00:00, jobs tagged team=legal",
        "  $98.20 spent, up to $0 in flight, $21.80 left",
        "nightly: stopped, 50% of $120.00 for the night until 2026-11-22 18:30, all jobs",
        "  $60.00 spent, up to $0 in flight, $0 left (nothing is sent above 50%)",
    ]
    legal, nightly = json.loads(run_orch("budget", "--json", env=env).stdout)
    assert legal == {
        "name": "legal", "tag": "team=legal", "period": "month", "starts_at": "2026-11-01T00:00:00+00:00",
        "renews_at": "2026-12-01T00:00:00+00:00", "amount_usd": "120", "warn_at": 0.8, "stop_at": 1.0,
        "spent_usd": "98.200000000000", "running_usd": "0", "in_flight_usd": "0",
        "left_usd": "21.800000000000", "share": 0.8183, "state": "warning", "problem": None,
    }  # fmt: skip
    assert (nightly["tag"], nightly["state"], nightly["left_usd"]) == (None, "stopped", "0")
    assert datetime.fromisoformat(nightly["starts_at"]) == datetime(2026, 11, 21, 18, 30, tzinfo=UTC)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("command", ["plan", "submit", "run"])
@pytest.mark.parametrize(
    ("tag", "limit", "code"),
    [("", None, 3), ("", 20, 0), ('tag = "team=legal"\n', None, 0)],
    ids=["without a limit", "with one", "under a budget for others"],
)
def test_rows_without_a_limit_are_refused_under_a_shared_budget(
    tag: str, limit: int | None, code: int, command: str, run_orch: Orch, tmp_path: Path, upstream: Upstream
) -> None:
    (run_orch.home / "orch.toml").write_text(
        f'[backends.api]\nkind = "sync"\nbase_url = "{upstream.base_url}"\nprovider = "openai"\n'
        'api_key_env = "API_KEY"\n[prices.m]\ninput = 1\noutput = 2\n'
        f'[[budgets]]\nname = "all"\namount = 1\nperiod = "month"\n{tag}'
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(jsonl([chat_line("a", "Hi", "m", **({} if limit is None else {"max_tokens": limit}))]))
    asked = run_orch(command, str(rows), env={"API_KEY": "k"})
    assert asked.returncode == code, asked.stderr
    told = "rows without `max_tokens` cannot be held to budget all"
    assert (told in asked.stderr + asked.stdout) is (code == 3)


@pytest.fixture
def here(run_orch: Orch, monkeypatch: pytest.MonkeyPatch) -> Orch:
    """The home for commands in this process."""
    monkeypatch.setenv("ORCH_HOME", str(run_orch.home))
    monkeypatch.setenv("ORCH_CONFIG", str(write_config(run_orch.home, ["http://127.0.0.1:1/v1"])))
    return run_orch


def test_without_budgets_it_says_how_to_make_one(here: Orch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["budget"]) == 0
    told = "orch: no budgets; add one with `[[budgets]]` in orch.toml (`orch help budgets`)\n"
    assert capsys.readouterr() == ("", told)
    assert run(["budget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_batch_that_nobody_can_bound_is_named(here: Orch, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(here.home, ["http://127.0.0.1:1/v1"], extra=BUDGETS)
    with Store.open(f"sqlite:///{here.home / 'orch.db'}") as store:
        new = job("old")
        store.jobs.add(new, {"team": "legal"})
        store.rows.add(new.id, [row(0)], {}, new.created_at)
        sharded(store, new)
    assert run(["budget"]) == 0
    assert "  ! orch.toml has no gpu, where old.001 is\n" in capsys.readouterr().out
    assert run(["budget", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(each["in_flight_usd"], each["state"]) for each in found} == {(None, "stopped")}


def test_a_mistake_in_them_is_told_with_its_field(here: Orch, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(here.home, ["http://127.0.0.1:1/v1"], extra=BUDGETS.replace("0.5", "5"))
    assert run(["budget"]) == 2
    assert "budgets[1].stop_at: Input should be less than or equal to 1" in capsys.readouterr().err
