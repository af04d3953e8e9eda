"""`orch report` on a home with paid rows: every form of output, and what is said of bad input."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run
from orchestrator.core.model import Forecast, JobId, Usage
from orchestrator.store import Store
from tests.support.stored import NOW, added, later, settle, sharded, succeeded

CONFIG = """\
[backends.gpu]
kind = "openai"
api_key_env = "UNSET"

[prices."house"]
input = 1
output = 2
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one job of three rows, for $1 each: two models that a list has, one that orch.toml prices."""
    (tmp_path / "orch.toml").write_text(CONFIG)
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        found = added(store)
        million = Usage(1_000_000)
        models = enumerate(("gpt-5-nano", "x", "house"))
        paid = [succeeded(seq, "1", model=model, usage=million) for seq, model in models]
        settle(store, sharded(store, found), *paid)
        store.forecasts.made([Forecast(JobId(found.id), "cost", "", "", NOW, 2.0, 4.0, "prior")])
        store.forecasts.settled(JobId(found.id), "cost", 3.0, later(1))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run(["report", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_prices_are_those_of_the_backend_and_of_orch_toml(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {line["group"]: line for line in told(capsys, "cost", "--by", "model")["lines"]}
    assert {name: (line["list_usd"], line["list_estimated"]) for name, line in lines.items()} == {
        "gpt-5-nano": ("0.050000000000", False),
        "house": ("1.000000000000", False),
        "x": ("0.050000000000", True),
    }
    dearer = told(capsys, "cost", "--by", "model", "--compare", "openai:gpt-5.4-mini")["lines"]
    assert [line["list_usd"] for line in dearer if line["group"] == "x"] == ["0.750000000000"]


@pytest.mark.parametrize("by", ["job", "day", "task", "model", "backend", "tag", "tag:team"])
def test_every_grouping_has_the_same_total(home: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    report = told(capsys, "cost", "--by", by)
    assert (report["by"], report["total"]["rows"], Decimal(report["total"]["cost_usd"])) == (by, 3, 3)
    assert report["total"]["documents"] == 3
    assert Decimal(report["total"]["per_document_usd"]) == 1
    known = report["total"]["foreseen"]
    assert (known and known["off"]) == (0.5 if by in ("job", "day") else None)


def test_since_and_job_narrow_a_report(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "cost", "--since", "2026-11-22")["lines"] == []
    assert len(told(capsys, "cost", "--since", "2026-11-20", "--job", "contracts-1")["lines"]) == 1
    assert told(capsys, "forecast", "--since", "2026-11-23") == []


def test_tables_csv_and_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "cost"]) == 0
    assert "contracts-1" in capsys.readouterr().out
    assert run(["report", "cost", "--csv", "--html", "cost.html"]) == 0
    shown = capsys.readouterr()
    [row] = csv.DictReader(io.StringIO(shown.out))
    assert (row["job"], row["foreseen_usd"]) == ("contracts-1", "2.000000000000")
    assert shown.err == "orch: the report is in cost.html\n"
    assert "contracts-1" in (home / "cost.html").read_text(encoding="utf-8")
    assert run(["report", "cost", "--html", "cost.html"]) == 0
    assert capsys.readouterr().out == "", "who asks for a page gets a page"


def test_the_forecast_report(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [line] = told(capsys, "forecast")
    assert (line["kind"], line["known"], line["below_p50"], line["below_p95"]) == ("cost", 1, 0.0, 1.0)
    assert run(["report", "forecast"]) == 0
    assert "too few to judge, 10 needed: cost\n" in capsys.readouterr().out
    assert run(["report", "forecast", "--since", "2026-11-23"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "orch: no forecasts yet; every batch that is sent adds some\n")


BAD = {
    "group": (["--by", "year"], "--by year: must be one of job, day, task, model, backend, tag, tag:KEY"),
    "tag without a key": (["--by", "tag:"], "--by tag:: must be one of"),
    "since": (["--since", "soon"], "--since soon: write 7d, 12h or a date such as 2026-11-01"),
    "since too far": (["--since", "99999999d"], "is too far back"),
    "compared model": (["--compare", "openai:none"], "no price is known for openai:none"),
    "page in no folder": (["--html", "no/cost.html"], "no/cost.html cannot be written: No such file or directory"),
}


@pytest.mark.parametrize(("argv", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_told(home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert run(["report", "cost", *argv]) == 2
    assert message in capsys.readouterr().err
