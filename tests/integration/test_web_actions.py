"""What the pages may do: only for who may, only from a page of ours, once, and with who asked for it."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import httpx2
import pytest

from orchestrator.cli import run
from orchestrator.cli.pages import PagesOptions, serve_pages
from orchestrator.core.clock import night_of, now
from orchestrator.core.events import EventKind
from orchestrator.core.listening import bound
from orchestrator.core.model import JobId, RequestState
from orchestrator.core.schedules import Night, NightState
from orchestrator.library.context import Context, opened
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.figures import words_of
from tests.support.nights import Nights
from tests.support.stored import job, row
from tests.support.webhome import SETTINGS, WebHome, web_home

LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}})


@dataclass
class Desk:
    """A page of somebody who may act."""

    client: httpx2.Client
    home: WebHome
    store: Store

    def token(self) -> str:
        found = re.search(r'name="form_token" value="(\w+)"', self.client.get(f"/jobs/{self.home.running.id}").text)
        assert found is not None, "the page has no action"
        return found[1]

    def do(self, action: str, **fields: str) -> httpx2.Response:
        return self.client.post(f"/do/{action}", data={"form_token": self.token(), **fields})

    def events(self, job: JobId, kind: EventKind) -> list[str]:
        return [event.reason for event in self.store.jobs.events(job) if event.kind == kind]


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WebHome, Context]]:
    for name, value in {"ORCH_CONFIG": tmp_path / "orch.toml", "ORCH_HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    home = web_home(tmp_path, big=2)
    with opened() as found:
        yield home, found


@pytest.fixture
def desk(context: tuple[WebHome, Context], capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    home, found = context
    with (
        serve_pages(bound("127.0.0.1", 0), found, PagesOptions("127.0.0.1", acts=True), lambda: found) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        client.get(re.findall(r"http://\S+", capsys.readouterr().err)[-1])
        yield Desk(client, home, found.store)


def test_a_page_that_needs_the_settings_is_not_missing_while_they_are_broken(
    context: tuple[WebHome, Context], capsys: pytest.CaptureFixture[str]
) -> None:
    home, found = context
    (home.root / "orch.toml").write_text("[backends.gpu\n")
    with (
        serve_pages(bound("127.0.0.1", 0), found, PagesOptions("127.0.0.1"), lambda: found) as url,
        httpx2.Client(base_url=url, timeout=30) as client,
    ):
        client.get(re.findall(r"http://\S+", capsys.readouterr().err)[-1])
        assert "orch.toml cannot be read." in client.get("/").text
        for page in ("/money", "/backends", "/cost.html"):
            told = client.get(page)
            assert (told.status_code, "<h1>Not shown</h1>" in told.text) == (503, True), page
            assert "orch.toml cannot be read just now" in told.text


@pytest.mark.long
def test_a_job_is_cancelled_once(desk: Desk) -> None:
    job = desk.home.running.id
    for _ in range(2):
        assert desk.do("cancel", job=job).status_code == 303
    assert desk.events(job, EventKind.CANCEL) == ["asked for by the user"]
    assert desk.store.jobs.get(job).cancel_requested_at is not None
    refused = desk.do("cancel", job=desk.home.new.id).text
    assert "has already ended" in refused
    assert "<h1>Not done</h1>" in refused
    assert 'data-live=""' in refused, "an update would take the reason away"
    assert "begins when <code>orch up</code> runs" in desk.client.get(f"/jobs/{job}").text


def test_a_page_that_cannot_be_made_says_so(desk: Desk) -> None:
    """Nor may the page that says so ask the database again."""
    with closing(sqlite3.connect(desk.home.root / "orch.db")) as database:
        database.execute("ALTER TABLE jobs RENAME TO gone")
        told = desk.client.get("/")
        database.execute("ALTER TABLE gone RENAME TO jobs")
    assert told.status_code == 503
    assert "<h1>Not shown</h1>" in told.text
    assert "daemon down" in told.text
    assert desk.client.get("/").status_code == 200


@pytest.mark.long
def test_failed_rows_are_retried_once(desk: Desk) -> None:
    job = desk.home.new.id
    token = desk.token()
    for _ in range(2):
        told = desk.client.post("/do/retry", data={"form_token": token, "job": job})
        assert (told.status_code, told.headers["location"]) == (303, f"/jobs/{job}")
    assert desk.events(job, EventKind.RETRY) == ["4 rows will be retried"]
    assert desk.store.jobs.counts([job])[job].pending == 4


@pytest.mark.long
def test_rows_that_a_cancelled_job_left_are_retried_and_a_job_without_any_offers_nothing(desk: Desk) -> None:
    new, at = job("left-1a2b", home=desk.home.running.home, created_at=now()), now()
    desk.store.jobs.add(new, {})
    desk.store.rows.add(new.id, [row(0), row(1)], {}, at)
    desk.store.jobs.mark_built(new.id, at)
    desk.store.rows.end_open(new.id, RequestState.CANCELLED, "cancelled", "cancelled by eva", at)
    desk.store.jobs.finish(new.id, "/out.jsonl", at)
    assert "Retry the rows without an answer" in desk.client.get(f"/jobs/{new.id}").text
    assert desk.do("retry", job=new.id).status_code == 303
    assert desk.store.jobs.counts([new.id])[new.id].pending == 2
    assert "begins when" not in desk.client.get(f"/jobs/{desk.home.old.id}").text, "it has no button"


@pytest.mark.long
def test_another_deadline_and_budget_are_shown_before_they_are_set(desk: Desk) -> None:
    job, at = desk.home.running.id, "2031-01-02T03:00:00+00:00"
    shown = desk.client.get(f"/jobs/{job}/terms", params={"deadline": at, "budget": "7.5"})
    assert shown.status_code == 200
    assert "$7.50" in shown.text
    assert desk.store.jobs.get(job).budget == Decimal("2.5"), "nothing is set yet"
    for _ in range(2):
        assert desk.do("revise", job=job, deadline=at, budget="7.5").status_code == 303
    revised = desk.store.jobs.get(job)
    assert (revised.deadline_at, revised.budget) == (datetime.fromisoformat(at), Decimal("7.5"))
    assert [reason.rpartition(", by ")[2] for reason in desk.events(job, EventKind.REVISED)] == ["the user"]
    for bad in ({"deadline": "soon"}, {"budget": "-1"}, {"budget": "NaN"}, {"budget": "1e99"}, {"budget": "much"}):
        assert desk.do("revise", job=job, **bad).status_code == 404, bad
        told = desk.client.get(f"/jobs/{job}/terms", params=bad)
        assert (told.status_code, told.text.count('<p class="notice warn">')) == (200, 1), bad
        assert f'value="{next(iter(bad.values()))}"' in told.text, "it can be corrected"
        assert "Change the job" not in told.text
    assert desk.store.jobs.get(job) == revised
    over = desk.client.get(f"/jobs/{desk.home.old.id}/terms", params={"budget": "9"}).text
    assert "has already ended" in over
    assert "Show the plan" not in over
    assert "Change the job" not in over


@pytest.mark.long
def test_a_row_is_released_from_quarantine_once(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quarantine", "list", "--json"]) == 0
    [held] = [one for one in json.loads(capsys.readouterr().out) if one["name"].startswith("letters")]
    for _ in range(2):
        assert desk.do("release", job=held["job"], custom_id=held["custom_id"]).status_code == 303
    assert desk.events(JobId(held["job"]), EventKind.RELEASED) == ["1 row from quarantine, by the user"]


@pytest.mark.long
def test_a_schedule_runs_now_once(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text(LINE)
    assert run(["schedule", "add", str(tmp_path / "in.jsonl"), "--cron", "0 22 * * *", "--tz", "UTC"]) == 0
    done = desk.do("run", schedule="in")
    assert (done.status_code, done.headers["location"]) == (303, "/schedules"), "where the night is seen"
    assert desk.do("run", schedule="in").status_code == 404, "it is due already"
    [night] = desk.store.schedules.nights(None)
    assert (night.state, night.asked_by) == (NightState.DUE, "the user")
    assert desk.client.get("/schedules").text.count("asked for by") == 1
    desk.store.schedules.begun(night, night.reason)
    assert desk.client.get("/schedules").text.count("asked for by") == 1, "who asked is in the reason"
    assert desk.do("run", schedule="none").status_code == 404


def test_a_night_that_brought_no_job_needs_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else of such a home is open, and it would look calm."""
    (tmp_path / "orch.toml").write_text(SETTINGS)
    (tmp_path / "in.jsonl").write_text(LINE)
    for name, value in {"ORCH_CONFIG": tmp_path / "orch.toml", "ORCH_HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    with (
        opened() as found,
        serve_pages(bound("127.0.0.1", 0), found, PagesOptions("127.0.0.1"), lambda: found) as url,
        httpx2.Client(base_url=url, timeout=30) as reader,
    ):
        reader.get(re.findall(r"http://\S+", capsys.readouterr().err)[-1])
        assert "no daemon</span>" in reader.get("/").text
        assert run(["schedule", "add", str(tmp_path / "in.jsonl"), "--cron", "0 22 * * *", "--tz", "UTC"]) == 0
        shown = reader.get("/").text
        assert "daemon down" in shown
        assert "Nothing needs attention" in shown
        [one], at = found.store.schedules.all(), now()
        lost = Night(one.id, night_of(at), at, NightState.MISSED, "no daemon ran in time", at)
        assert found.store.schedules.claim(lost)
        shown = reader.get("/").text
        assert "no daemon ran in time" in shown
        assert "Nothing needs attention" not in shown
        cell = rf'class="night bad" href="/schedules"><span class="date">{night_of(at).day}( [A-Z][a-z]{{2}})?</span>'
        assert re.search(cell, reader.get("/nights").text)
        found.store.schedules.pause(one.id, at)
        assert "no daemon ran in time" not in reader.get("/").text


@pytest.mark.long
def test_who_only_looks_or_comes_from_elsewhere_does_nothing(
    desk: Desk, context: tuple[WebHome, Context], capsys: pytest.CaptureFixture[str]
) -> None:
    home, found = context
    job = home.running.id
    token = desk.token()
    for fields in ({}, {"form_token": ""}, {"form_token": token[:-1] + "x"}):
        assert desk.client.post("/do/cancel", data={**fields, "job": job}).status_code == 403, fields
    elsewhere = {"origin": "https://evil.example"}
    body = {"form_token": token, "job": job}
    assert desk.client.post("/do/cancel", data=body, headers=elsewhere).status_code == 403
    assert httpx2.post(f"{desk.client.base_url}/do/cancel".replace("//do", "/do"), data=body).status_code == 401
    assert desk.client.get("/do/cancel", params=body).status_code == 405
    assert desk.client.post("/do/nothing", data=body).status_code == 404
    with (
        serve_pages(bound("127.0.0.1", 0), found, PagesOptions("127.0.0.1"), lambda: found) as url,
        httpx2.Client(base_url=url) as reader,
    ):
        reader.get(re.findall(r"http://\S+", capsys.readouterr().err)[-1])
        page = reader.get(f"/jobs/{job}")
        assert page.status_code == 200
        assert "<form" not in page.text
        told = reader.post("/do/cancel", data=body)
        assert told.status_code == 403
    assert desk.store.jobs.get(job).cancel_requested_at is None


def test_a_limited_run_is_not_taken_for_a_whole_one_in_lists(desk: Desk) -> None:
    nights = Nights(desk.store, Home(desk.home.root))
    trial = nights.run({"a.txt": {"party": "A"}}, id="trial-1", name="trial", at=now(), options={"limit": 5})
    nights.finish(trial, now())
    assert re.search(r"trial-1\s+completed\s+limited", words_of(desk.client.get("/jobs").text))
