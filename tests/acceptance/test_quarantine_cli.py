"""`orch quarantine`: what a user sees of rows that failed for good, and how they are let go of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run
from orchestrator.core.counts import number_of
from orchestrator.core.shards import ShardState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.cli import write_config
from tests.support.stored import NOW, failed, job, row, settle, sharded, succeeded


@pytest.fixture
def home(orch_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose job has two failures that last, of its documents d0 and d1."""
    monkeypatch.setenv("ORCH_HOME", str(orch_home))
    monkeypatch.setenv("ORCH_CONFIG", str(write_config(orch_home, ["http://127.0.0.1:1/v1"])))
    monkeypatch.setenv("TZ", "UTC")
    with Store.open(f"sqlite:///{orch_home / 'orch.db'}") as store:
        new = job(home=Home(orch_home).identity())
        store.jobs.add(new, {})
        store.rows.add(new.id, [row(seq) for seq in range(3)], {}, NOW)
        store.jobs.mark_built(new.id, NOW)
        long = "topic: 'x' is not of type 'object', and neither is what comes behind it"
        ends = (failed(0, "schema_mismatch", long), failed(1, "refusal", "the model\nrefused"), succeeded(2))
        settle(store, sharded(store, new, state=ShardState.COLLECTED), *ends)
    return orch_home


def listed(capsys: pytest.CaptureFixture[str], *more: str) -> list[Any]:
    capsys.readouterr()
    assert run(["quarantine", "list", "--json", *more]) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_list_says_what_is_held_why_and_since_when(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quarantine", "list"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["document", "task", "code", "since", "job", "runs", "reason"]
    assert first.split()[:7] == ["d0", "t", "schema_mismatch", "2026-11-21", "20:00", "contracts-1", "1"]
    assert "topic: 'x' is not of type 'object', and neither is what com" in first
    assert "…" not in first, "a reason is told whole"
    assert second.endswith("the model refused")
    assert listed(capsys)[1] == {
        "document": "d1", "task": "t", "custom_id": "r1", "code": "refusal", "reason": "the model\nrefused",
        "name": "contracts", "job": "contracts-1", "since": "contracts-1",
        "since_at": "2026-11-21T20:00:00+00:00", "runs": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "left"),
    [(["d0"], ["d1"]), (["--all"], []), (["--job", "contracts-1"], []), (["d1", "--job", "contracts-1"], ["d0"])],
    ids=str,
)
def test_a_release_lets_go_of_what_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], left: list[str]
) -> None:
    assert run(["quarantine", "release", *arguments]) == 0
    number = 2 - len(left)
    out, err = capsys.readouterr()
    said = f"orch: released: {number_of(number, 'row')}; the next run of the job file retries them\n"
    assert (out, err) == ("", said)
    assert [one["document"] for one in listed(capsys)] == left
    with Store.open(f"sqlite:///{home / 'orch.db'}") as store:
        event = store.jobs.events(store.jobs.get("contracts-1").id)[-1]
    assert (event.kind, event.reason) == ("released", f"{number_of(number, 'row')} from quarantine, by the user")


def test_with_nothing_held_it_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quarantine", "release", "--all", "--json"]) == 0
    assert [one["document"] for one in json.loads(capsys.readouterr().out)] == ["d0", "d1"]
    assert run(["quarantine", "list"]) == 0
    assert capsys.readouterr() == ("", "orch: the quarantine is empty\n")
    assert run(["quarantine", "release", "--all"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["release"], "name a DOCUMENT, --job JOB, or --all"),
        (["release", "--all", "d0"], "name a DOCUMENT, --job JOB, or --all"),
        (["release", "d2"], "no row of the document 'd2' is in quarantine"),
        (["list", "--job", "nobody"], "there is no job 'nobody'"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["quarantine", *arguments]) == 2
    assert said in capsys.readouterr().err
