"""`orch schedule` and what `orch status` says of it: every command, for people and for programs, and bad input."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import pytest
import tzlocal

from orchestrator.cli import run
from orchestrator.core.model import JobId
from orchestrator.core.schedules import Night, NightState
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.cli import write_config
from tests.support.stored import job

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: sender, model: small, prompt: "Who wrote this?"}
models: {small: some-model}
"""
EVENING = "2026-11-20T19:00:00+00:00"
BERLIN = ("--cron", "0 22 * * *", "--tz", "Europe/Berlin")


class Desk:
    """A home with a job file; its clock stands still, and the commands run in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.clock = folder / "clock.json"
        self.file = folder / "job.yaml"
        self.file.write_text(JOB, encoding="utf-8")
        (folder / "documents").mkdir()
        (folder / "documents" / "0.txt").write_text("Dear reader.", encoding="utf-8")
        write_config(self.home, ["http://127.0.0.1:9/v1"])
        self._capsys = capsys
        self.set(EVENING)

    def set(self, at: str) -> None:
        self.clock.write_text(json.dumps({"at": at, "since": 0, "speed": 0}))

    def __call__(self, *argv: str, code: int = 0) -> tuple[str, str]:
        found = run([str(argument) for argument in argv])
        out, err = self._capsys.readouterr()
        assert found == code, err
        return out, err

    def json(self, *argv: str) -> Any:
        return json.loads(self(*argv, "--json")[0])

    def add(self, *options: str) -> Any:
        return self.json("schedule", "add", str(self.file), *BERLIN, *options)

    @property
    def store(self) -> Store:
        return Store.open(f"sqlite:///{self.home / 'orch.db'}")

    def night(self, day: int, state: NightState) -> None:
        """A night of the only schedule, as a daemon would have recorded it."""
        with self.store as store:
            (one,) = store.schedules.all()
            at = datetime.fromisoformat(f"2026-11-{day:02}T21:00:00+00:00")
            assert store.schedules.claim(Night(one.id, date(2026, 11, day), at, state, "so it was", at))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    made = Desk(tmp_path, capsys)
    settings = {"ORCH_HOME": made.home, "ORCH_CONFIG": made.home / "orch.toml", "ORCH_CLOCK": made.clock, "TZ": "UTC"}
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    return made


def test_add_shows_what_it_made(desk: Desk) -> None:
    out, err = desk(
        "schedule", "add", str(desk.file), *BERLIN, "--deadline", "06:00", "--budget", "$12.50", "--misfire", "skip",
        "--overlap", "wait",
    )  # fmt: skip
    assert out.splitlines() == [
        "letters: next Fri 2026-11-20 22:00, in 2 h (0 22 * * *, Europe/Berlin)",
        f"  {desk.file}, deadline 06:00, budget $12.50; late nights are skipped; "
        "a night waits if a job from this file is still running",
    ]
    assert "`orch up` is not running" in err
    (told,) = desk.json("schedule", "list")
    assert told == {
        "name": "letters", "file": str(desk.file), "state": "active", "cron": "0 22 * * *", "after": None,
        "tz": "Europe/Berlin", "deadline": "06:00", "budget_usd": "12.5", "misfire": "skip", "grace_seconds": 21600,
        "overlap": "wait", "home": Home(desk.home).identity(), "config": str(desk.home / "orch.toml"),
        "created_at": EVENING, "paused_at": None, "next_at": "2026-11-20T21:00:00+00:00",
        "next_local": "Fri 2026-11-20 22:00", "last": None,
    }  # fmt: skip


def test_what_is_left_out_has_defaults(desk: Desk) -> None:
    told = desk.json("schedule", "add", str(desk.file), "--cron", "0 22 * * *")
    terms = ("deadline", "budget_usd", "misfire", "grace_seconds", "overlap", "name")
    assert [told[name] for name in terms] == [None, None, "run", 21600, "skip", "letters"]


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "a cron of four": (("--cron", "0 22 * *"), "--cron: .* has 4 fields, not 5"),
    "two ways to say when": (
        ("--after", "letters"),
        "give --cron, or --after with the schedule that this one follows",
    ),
    "a zone": (("--tz", "Europe/Berln"), "--tz: .* did you mean Europe/Berlin"),
    "a grace": (("--grace", "60d"), "--grace: '60d' is not a length of time up to 31d"),
    "a deadline for one night": (("--deadline", "2026-12-01"), "--deadline: .* is not a deadline for every night"),
    "a name": (("--name", "my letters"), "--name: 'my letters' is not a name"),
    "a budget": (("--budget", "much"), "'much' is not an amount of dollars"),
    "a rule": (("--misfire", "panic"), "'panic' is not one of 'run', 'skip'"),
}


@pytest.mark.parametrize(("options", "problem"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_meant_is_told(desk: Desk, options: tuple[str, ...], problem: str) -> None:
    _, err = desk("schedule", "add", str(desk.file), *BERLIN, *options, code=2)
    assert re.search(problem, err), err
    assert desk.json("schedule", "list") == []


def test_a_bad_job_file_is_told_as_validate_does(desk: Desk) -> None:
    desk.file.write_text(JOB.replace("tasks:", "taks:"), encoding="utf-8")
    validated = desk("validate", str(desk.file), code=2)[1]
    assert desk("schedule", "add", str(desk.file), *BERLIN, code=2)[1] == validated
    assert f"{desk.file}:3: taks" in validated


def test_warnings_and_unreadable_documents_are_told_and_do_not_keep_it(desk: Desk) -> None:
    desk.file.write_text(JOB.replace("Who wrote this?", "Who wrote {{ text }}"), encoding="utf-8")
    (desk.folder / "documents" / "1.txt").write_text("", encoding="utf-8")
    out, err = desk("schedule", "add", str(desk.file), *BERLIN)
    assert out.startswith("letters: next")
    assert "tasks[0].prompt: {{ text }} stands after" in err
    assert "orch: documents/1.txt: empty" in err


def test_a_job_file_whose_deadline_is_of_one_night_needs_another(desk: Desk) -> None:
    desk.file.write_text(JOB + "deadline: 2026-12-01T06:00\n", encoding="utf-8")
    _, err = desk("schedule", "add", str(desk.file), *BERLIN, code=2)
    assert f"{desk.file}: deadline: '2026-12-01T06:00' is not a deadline for every night" in err
    assert "--deadline" in err
    assert desk.add("--deadline", "06:00")["deadline"] == "06:00"


def test_a_name_is_taken_once(desk: Desk) -> None:
    desk.add()
    (desk.folder / "documents" / "1.txt").write_text("", encoding="utf-8")
    for more in ((), ("--name", "letters")):
        _, err = desk("schedule", "add", str(desk.file), *BERLIN, *more, code=2)
        assert err.startswith("orch: there is already a schedule letters\n"), "documents are not read for it"
    assert desk.add("--name", "again")["name"] == "again"
    assert [one["name"] for one in desk.json("schedule", "list")] == ["again", "letters"]


def test_pause_and_resume(desk: Desk) -> None:
    desk.add()
    assert "letters: paused since Fri 2026-11-20 20:00" in desk("schedule", "pause", "letters")[0]
    assert desk.json("schedule", "pause", "letters")["state"] == "paused"
    (told,) = desk.json("schedule", "list")
    assert (told["state"], told["paused_at"], told["next_at"]) == ("paused", EVENING, None)
    assert "next night" not in desk("status")[0]
    told = desk.json("schedule", "resume", "letters")
    assert (told["state"], told["next_at"]) == ("active", "2026-11-20T21:00:00+00:00")


def test_nights_are_listed_newest_last(desk: Desk) -> None:
    desk.add()
    assert "no night was due yet" in desk("schedule", "nights")[1]
    for day in range(1, 23):
        desk.night(day + 1, NightState.DONE)
    out, _ = desk("schedule", "nights", "letters")
    assert len(out.splitlines()) == 20
    assert out.splitlines()[-1] == "2026-11-23  letters  done: so it was"
    assert len(desk("schedule", "nights", "--all")[0].splitlines()) == 22
    told = desk.json("schedule", "nights")[-1]
    assert told == {
        "schedule": "letters", "night": "2026-11-23", "slot": None, "state": "done", "code": None,
        "reason": "so it was", "job": None,
        "due_at": "2026-11-23T21:00:00+00:00", "found_at": "2026-11-23T21:00:00+00:00", "ended_at": None,
        "asked_by": None,
    }  # fmt: skip
    assert desk.json("schedule", "list")[0]["last"]["night"] == "2026-11-23"
    assert "  2026-11-23: done: so it was" in desk("schedule", "list")[0]


def test_run_makes_the_last_night_due_where_it_did_not_run(desk: Desk) -> None:
    desk.add()
    out, err = desk("schedule", "run", "letters")
    assert out == "letters: the night of 2026-11-20 is due\n", "it begins now, whenever the last one was due"
    assert "`orch up` is not running" in err
    _, err = desk("schedule", "run", "letters", code=2)
    assert "the night of 2026-11-20 is due: asked for by the user" in err
    desk.set("2026-11-20T22:00:00+00:00")
    desk.night(20, NightState.FAILED)
    told = desk.json("schedule", "run", "letters")
    assert (told["schedule"], told["night"], told["state"]) == ("letters", "2026-11-20", "due")
    assert told["due_at"] == "2026-11-20T22:00:00+00:00"
    desk.set("2026-11-21T22:00:00+00:00")
    desk.night(21, NightState.DONE)
    _, err = desk("schedule", "run", "letters", code=2)
    assert f"hint: `orch run {desk.file}` analyses what has changed since" in err
    assert [night["state"] for night in desk.json("schedule", "nights")] == ["due", "due", "done"]


def test_run_of_what_had_no_night_is_told(desk: Desk) -> None:
    desk.json("schedule", "add", str(desk.file), "--cron", "0 22 29 2 *")
    assert "letters has not had a night yet" in desk("schedule", "run", "letters", code=2)[1]


def test_remove_leaves_nothing_of_it(desk: Desk) -> None:
    desk.add()
    desk.night(20, NightState.DONE)
    assert "letters: removed" in desk("schedule", "remove", "letters")[0]
    assert desk.json("schedule", "nights") == []
    desk.add()
    assert desk.json("schedule", "remove", "letters") == {"removed": "letters"}
    out, err = desk("schedule", "list")
    assert (out, err.startswith("orch: no schedules; `orch schedule add")) == ("", True)


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "remove", "nights"])
def test_a_schedule_that_is_not_there_is_told_with_those_that_are(desk: Desk, verb: str) -> None:
    desk.add()
    _, err = desk("schedule", verb, "leters", code=2)
    assert "there is no schedule 'leters'" in err
    assert "known: letters" in err


def test_a_schedule_of_another_home_on_the_same_database_says_so(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.add()
    monkeypatch.setenv("ORCH_DATABASE_URL", f"sqlite:///{desk.home / 'orch.db'}")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "other"))
    assert "  belongs to another home, whose daemon runs it" in desk("schedule", "list")[0]


def test_status_says_whether_a_daemon_runs_and_when_the_next_night_is(desk: Desk) -> None:
    assert desk("status")[0] == "daemon: not running; start it with `orch up`\n"
    desk.add("--name", "early")
    desk.json("schedule", "add", str(desk.file), "--cron", "30 22 * * *", "--name", "late")
    coming = "next night: early, Fri 2026-11-20 22:00 Europe/Berlin, in 2 h"
    assert desk("status")[0].splitlines()[-1] == f"{coming}; nights are only run by `orch up`, which is not running"
    for command, more in (
        ("orch run x.yaml", "; nights are only run by `orch up`, which is not running"),
        ("orch up", ""),
    ):
        with running(desk.home, command):
            out = desk("status")[0].splitlines()
        assert out == [f"daemon: `{command}` (process 7) runs", coming + more]


@pytest.mark.parametrize(("zone", "told"), [("Europe/Berlin", " Europe/Berlin"), ("UTC", ""), ("Africa/Abidjan", "")])
def test_the_next_night_names_its_zone_if_its_clocks_are_not_the_machines(desk: Desk, zone: str, told: str) -> None:
    desk.json("schedule", "add", str(desk.file), "--cron", "0 22 * * *", "--tz", zone)
    assert f"next night: letters, Fri 2026-11-20 22:00{told}, in " in desk("status")[0]


@contextmanager
def running(home: Path, command: str) -> Iterator[None]:
    """Another process has the home's daemon."""
    with (home / "engine.lock").open("w") as lock:
        lock.write(json.dumps({"pid": 7, "command": command}))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_the_time_zone_is_this_machines_where_it_has_a_name(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(found: str | None) -> tuple[str, str]:
        def name() -> str | None:
            if found == "":
                raise ZoneInfoNotFoundError("several, and they differ")
            return found

        monkeypatch.setattr(tzlocal, "get_localzone_name", name)
        return desk("schedule", "add", str(desk.file), "--cron", "0 22 * * *", code=0 if found else 2)

    assert "(0 22 * * *, America/New_York)" in asked("America/New_York")[0]
    for none in (None, ""):
        assert "--tz: this machine's time zone has no name" in asked(none)[1]


@pytest.mark.parametrize(
    ("cron", "due", "asked_by", "called"),
    [
        ("0 22 * * *", "2026-11-21T22:00:00+00:00", None, "2026-11-21"),
        ("30 1 * * *", "2026-11-22T01:30:00+00:00", None, "2026-11-21"),
        ("0 14 * * *", "2026-11-22T14:00:00+00:00", None, "2026-11-22"),
        ("0 22 * * *", "2026-11-22T17:14:00+00:00", "the user", "2026-11-22"),
        ("0 22 * * *", "2026-11-22T09:00:00+00:00", "the user", "2026-11-21"),
    ],
    ids=["in the evening", "after midnight", "in the afternoon", "asked for in the afternoon", "asked for at nine"],
)
def test_a_night_has_one_date_in_schedules_and_reports(
    desk: Desk, cron: str, due: str, asked_by: str | None, called: str
) -> None:
    desk.json("schedule", "add", str(desk.file), "--cron", cron, "--tz", "UTC")
    at = datetime.fromisoformat(due)
    with desk.store as store:
        (one,) = store.schedules.all()
        made = job("letters-1", home=one.home, created_at=at)
        store.jobs.add(made, {})
        key = at.date() if asked_by is None else date(2026, 11, 21)
        done = Night(one.id, key, at, NightState.DONE, "so it was", at, job_id=JobId(made.id), asked_by=asked_by)
        assert store.schedules.claim(done)
    desk.set((at + timedelta(hours=1)).isoformat())
    assert desk.json("schedule", "nights")[-1]["night"] == called
    assert desk("schedule", "nights")[0].startswith(f"{called}  letters  done")
    assert f"  {called}: done" in desk("schedule", "list")[0]
    assert f"the night of {called} is done" in desk("schedule", "run", "letters", code=2)[1]
    assert desk.json("report", "night")["night"] == called
    assert [one["job"] for one in desk.json("report", "night", called)["jobs"]] == ["letters-1"]
