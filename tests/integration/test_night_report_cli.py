"""`orch report night` and `orch diff` on a home with two nights: every form of output, and bad input."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import run
from orchestrator.core.model import CancelCode, Job, JobId
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.nights import SPEC, Bad, Nights
from tests.support.stored import NOW, job, later

FIRST = {"a": {"party": "A"}, "b": {"party": "B", "end": 2027}, "c": {"party": "C"}, "gone": {"party": "G"}}
SECOND = {
    "a": {"party": "A"}, "b": {"party": "B", "end": 2030}, "c": Bad("truncated", "ended early"),
    "new": {"party": "N"},
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two nights of one job file."""
    (tmp_path / "orch.toml").write_text("")
    for name, value in {"ORCH_CONFIG": tmp_path / "orch.toml", "ORCH_HOME": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with opened(tmp_path) as store:
        nights = Nights(store, Home(tmp_path))
        nights.finish(nights.run(FIRST, at=NOW), later(2))
        nights.finish(nights.run(SECOND, at=later(24), deadline_at=later(30)), later(26))
    return tmp_path


def opened(home: Path) -> Store:
    return Store.open(f"sqlite:///{home / 'orch.db'}")


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert run([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_night_beside_the_one_before(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = told(capsys, "report", "night")
    assert report["night"] == "2026-11-22"
    [of] = report["jobs"]
    assert (of["job"], of["before"], of["cost_usd"], of["deadline"]["met"]) == (
        "contracts-2",
        "contracts-1",
        "1.000000000000",
        True,
    )
    named = {fate: [one["name"] for one in found["first"]] for fate, found in of["documents"].items()}
    assert {fate: names for fate, names in named.items() if names} == {
        "new": ["new"], "changed": ["b"], "removed": ["gone"], "failed": ["c"],
    }  # fmt: skip
    assert of["documents"]["unchanged"]["documents"] == 1
    assert of["answers"]["changed"]["fields"] == {"t.end": 1, "t.status": 1}
    assert [need["job"] for need in report["needs"]] == ["contracts-2"]
    [first] = told(capsys, "report", "night", "2026-11-21")["jobs"]
    assert (first["job"], first["before"], first["answers"]) == ("contracts-1", None, None)
    assert told(capsys, "report", "night", "contracts-1")["night"] is None


def test_a_job_that_is_being_built_has_lost_no_document(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(home) as store:
        building = job("contracts-3", spec=SPEC, created_at=later(48), home=Home(home).identity())
        store.jobs.add(building, {})
    [of] = told(capsys, "report", "night", "contracts-3")["jobs"]
    assert of["before"] == "contracts-2"
    assert of["documents"]["removed"]["documents"] == 0


def test_every_form_says_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "night", "--md", "--html", "night.html"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("# Night of Sun 2026-11-22\n")
    assert shown.err == "orch: the report is in night.html\n"
    page = re.sub(r"</?span[^>]*>", "", (home / "night.html").read_text(encoding="utf-8"))
    assert run(["report", "night"]) == 0
    table = capsys.readouterr().out
    for words in ("ended early", "2030", "gone", "was met with 4 h to spare"):
        assert words in shown.out
        assert words in page
        assert words in table
    assert run(["report", "night", "--html", "night.html"]) == 0
    assert capsys.readouterr().out == "", "who asks for a page gets a page"


def test_nights_are_compared_by_their_dates(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_id = told(capsys, "diff", "contracts-1", "contracts-2")
    assert told(capsys, "diff", "2026-11-21", "2026-11-22") == by_id
    assert run(["diff", "2026-11-21", "2026-11-23"]) == 2
    assert "the night of 2026-11-23, from noon to noon, has 0 jobs: none" in capsys.readouterr().err


def test_a_diff_and_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "diff", "contracts-1", "contracts-2")
    assert [one["document"] for one in found["added"]["first"]] == ["new"]
    assert [one["document"] for one in found["removed"]["first"]] == ["gone"]
    assert found["changed"] == {
        "rows": 2,
        "fields": {"t.end": 1, "t.status": 1},
        "first": [
            {"custom_id": "c-b", "document": "b", "task": "t",
             "fields": [{"field": "end", "before": 2027, "after": 2030}]},
            {"custom_id": "c-c", "document": "c", "task": "t",
             "fields": [{"field": "status", "before": "succeeded", "after": "failed: truncated"}]},
        ],
    }  # fmt: skip
    back = told(capsys, "diff", "contracts-2", "contracts-1", "--limit", "0")
    assert (back["added"], back["changed"]["rows"], back["unread"]) == ({"rows": 1, "first": []}, 2, 0)
    assert told(capsys, "diff", "contracts-1", "contracts-1")["changed"]["rows"] == 0
    assert run(["diff", "contracts-1", "contracts-2", "--limit", "1"]) == 0
    table = capsys.readouterr().out
    assert re.match(r"contracts-1 \(Sat 2026-11-21 \d\d:\d\d\) → contracts-2 \(Sun 2026-11-22 \d\d:\d\d\)\n", table)
    assert "1 row added, 1 removed, 2 changed" in table
    assert "2027" in table
    assert "and 1 more row (--limit shows more)" in table


def test_a_diff_of_jobs_with_nothing_in_common_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "documents/contract-with-a-long-name-2026.txt"
    with opened(home) as store:
        nights = Nights(store, Home(home))
        for number, fields in enumerate(({"party": "an old party"}, {"party": "another party"})):
            nights.finish(nights.run({name: fields}, id=f"other-{number}", name="other", at=later(number)), later(2))
    assert run(["diff", "contracts-1", "other-0"]) == 0
    assert capsys.readouterr().err == "orch: contracts-1 and other-0 have no document and task in common\n"
    assert run(["diff", "other-0", "other-1"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert f"~  {name}  " in shown.out, "a document is whole on 80 columns"
    assert "  an old party  → another party\n" in shown.out


def test_answers_whose_file_is_gone_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Home(home).results("contracts-1.001", "output").unlink()
    found = told(capsys, "diff", "contracts-1", "contracts-2")
    assert (found["unread"], found["changed"]["rows"]) == (2, 0)
    assert run(["diff", "contracts-1", "contracts-2"]) == 0
    assert "2 answers could not be compared" in capsys.readouterr().out
    assert "a result file is gone" in told(capsys, "report", "night")["needs"][-1]["need"]


def slot(home: Path, at: datetime, state: NightState, job_id: str | None, name: str = "contracts") -> str:
    """A run of a schedule with several a day, as a daemon would have recorded it; its name."""
    with opened(home) as store:
        if not [one for one in store.schedules.all() if one.name == name]:
            store.schedules.add(
                Schedule(
                    id=f"{name}-1", name=name, home="home", config="/orch.toml", file="/job.yaml", cron="0 * * * *",
                    tz="UTC", deadline=None, budget=None, misfire=Misfire.RUN, grace=timedelta(hours=6),
                    overlap=Overlap.SKIP, created_at=NOW, since=NOW,
                )
            )  # fmt: skip
        run_at = Night(
            f"{name}-1", at.date(), at, state, "so it was", at, job_id=job_id and JobId(job_id), slot=f"{at:%H:%M}"
        )
        assert store.schedules.claim(run_at)
        return run_at.name


def test_a_run_of_a_schedule_with_several_a_day_is_found_by_its_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (slot(home, later(hour), NightState.DONE, f"contracts-{hour // 24 + 1}") for hour in (0, 24))
    assert [one["job"] for one in told(capsys, "report", "night", first)["jobs"]] == ["contracts-1"]
    assert [one["job"] for one in told(capsys, "report", "night", second)["jobs"]] == ["contracts-2"]
    assert run(["report", "night", "contracts-2"]) == 0
    assert f"contracts, {later(24):%a} {second}" in capsys.readouterr().out
    compared = told(capsys, "diff", first, second)
    assert (compared["before"], compared["after"]) == ("contracts-1", "contracts-2")
    lost = slot(home, later(48), NightState.MISSED, None)
    assert run(["report", "night", lost]) == 2
    assert f"the run of {lost} has no job; it is missed: so it was" in capsys.readouterr().err


def test_a_day_on_which_something_ran_before_noon_leads_to_its_night(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    morning = datetime(2026, 11, 25, 3).astimezone()
    with opened(home) as store:
        Nights(store, Home(home)).run(FIRST, at=morning, id="contracts-9")
    assert run(["report", "night", "2026-11-25"]) == 2
    assert "is in the night before: `orch report night 2026-11-24`" in " ".join(capsys.readouterr().err.split())
    assert [one["job"] for one in told(capsys, "report", "night", "2026-11-24")["jobs"]] == ["contracts-9"]


def test_a_run_that_is_being_built_hides_no_rows_of_the_run_before(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(home) as store:
        store.jobs.add(job("contracts-3", created_at=later(24.5), spec=SPEC, home=Home(home).identity()), {})
    report = told(capsys, "report", "night")
    assert [one["job"] for one in report["jobs"]] == ["contracts-2", "contracts-3"]
    assert (report["asked"], report["answered"]) == (4, 3)
    assert run(["report", "night"]) == 0
    assert "not counted" not in capsys.readouterr().out


BAD = {
    "no such night": (["report", "night", "2026-01-01"], "no job was submitted in the night of 2026-01-01"),
    "no such job": (["report", "night", "nothing"], "there is no job 'nothing'"),
    "two forms": (["report", "night", "--md", "--json"], "give --md or --json, not both"),
    "page in no folder": (["report", "night", "--html", "no/night.html"], "no/night.html cannot be written"),
    "diff with nothing": (["diff", "contracts-1", "nothing"], "there is no job 'nothing'"),
}


@pytest.mark.parametrize(("argv", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_told(home: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert run(argv) == 2
    assert message in capsys.readouterr().err


def test_a_home_without_jobs(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_HOME", str(home / "other"))
    assert run(["report", "night"]) == 2
    assert "there are no jobs yet" in capsys.readouterr().err


def test_a_run_that_has_no_results_is_none_to_compare_with(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(home) as store:
        nights = Nights(store, Home(home), number=2)
        broken: Job = nights.run(FIRST, at=later(48))
        store.jobs.fail(broken.id, "no such model")
        nights.run(SECOND, at=later(72))
    [of] = told(capsys, "report", "night", "contracts-4")["jobs"]
    assert (of["before"], of["state"]) == ("contracts-2", "stopped"), "no daemon runs"
    assert (
        told(capsys, "report", "night", "contracts-3")["needs"][0]["need"]
        == "the job could not continue: no such model"
    )


def test_a_cancelled_run_is_none_to_compare_with(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(home) as store:
        nights = Nights(store, Home(home), number=2)
        cancelled = nights.run({"a": {"party": "A"}, "other": {"party": "O"}}, at=later(48))
        assert store.jobs.request_cancel(cancelled.id, CancelCode.USER, "cancelled by the user", later(48))
        nights.finish(store.jobs.get(cancelled.id), later(49))
        nights.finish(nights.run(SECOND, at=later(72)), later(73))
    [of] = told(capsys, "report", "night", "contracts-4")["jobs"]
    assert of["before"] == "contracts-2"
    named = {fate: [one["name"] for one in found["first"]] for fate, found in of["documents"].items()}
    assert (named["new"], named["removed"]) == ([], [])
