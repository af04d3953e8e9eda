"""Schedules come back as they were made; a night is had once, whoever asks and however many at once."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from orchestrator.core.errors import StateConflict, UsageError
from orchestrator.core.model import JobId
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.store import Store
from tests.support.process import PATIENCE
from tests.support.stored import NOW, added, later

LETTERS = Schedule(
    id="letters-1", name="letters", home="home", config="/orch.toml", file="/letters/job.yaml", cron="0 22 * * *",
    tz="Europe/Berlin", deadline="06:00", budget=Decimal("12.5"), misfire=Misfire.SKIP, grace=timedelta(hours=6),
    overlap=Overlap.WAIT, created_at=NOW, since=NOW,
)  # fmt: skip
BILLS = replace(
    LETTERS, id="bills-1", name="bills", deadline=None, budget=None, misfire=Misfire.RUN, overlap=Overlap.SKIP
)
NIGHT = Night("letters-1", date(2026, 11, 21), NOW, NightState.DUE, "it is due", later(1))

CLAIM = """
import sys
from msgspec.structs import replace
from datetime import timedelta
from orchestrator.store import Store
from tests.contract.test_schedules_store import NIGHT
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    nights = [replace(NIGHT, night=NIGHT.night + timedelta(days=number)) for number in range(20)]
    print(sum(store.schedules.claim(night) for night in nights))
"""


def begun(store: Store, **facts: Any) -> Night:
    """A running night of a schedule that is there."""
    store.schedules.add(LETTERS)
    night = replace(NIGHT, **facts)
    assert store.schedules.claim(night)
    store.schedules.begun(night, "on time")
    return night


def only(store: Store) -> Night:
    (night,) = store.schedules.nights()
    return replace(night, id=0)


def test_schedules_come_back_by_name_and_all(store: Store) -> None:
    store.schedules.add(LETTERS)
    store.schedules.add(BILLS)
    assert store.schedules.find("letters") == LETTERS
    assert store.schedules.find("letter") is None
    assert store.schedules.all() == [BILLS, LETTERS]


def test_a_name_that_is_taken_is_refused(store: Store) -> None:
    store.schedules.add(LETTERS)
    with pytest.raises(UsageError, match="there is already a schedule letters"):
        store.schedules.add(replace(BILLS, name="letters"))
    assert store.schedules.all() == [LETTERS]


def test_pause_and_resume_each_once(store: Store) -> None:
    store.schedules.add(LETTERS)
    assert not store.schedules.resume("letters-1", later(1))
    assert store.schedules.pause("letters-1", later(1))
    assert not store.schedules.pause("letters-1", later(2))
    assert store.schedules.find("letters") == replace(LETTERS, paused_at=later(1))
    assert store.schedules.resume("letters-1", later(3))
    assert store.schedules.find("letters") == replace(LETTERS, since=later(3))
    assert not store.schedules.pause("gone", later(1))


def test_what_is_removed_takes_its_nights_along_and_leaves_others_and_jobs(store: Store) -> None:
    added(store)
    night = begun(store)
    store.schedules.given(night, JobId("contracts-1"))
    store.schedules.add(BILLS)
    assert store.schedules.claim(replace(NIGHT, schedule_id="bills-1"))
    assert store.schedules.remove("letters-1")
    assert not store.schedules.remove("letters-1")
    assert store.schedules.all() == [BILLS]
    assert [left.schedule_id for left in store.schedules.nights()] == ["bills-1"]
    assert store.jobs.find(JobId("contracts-1")) is not None
    assert not store.schedules.claim(replace(NIGHT, night=date(2026, 11, 22)))
    with pytest.raises(StateConflict):
        store.schedules.ended(night, NightState.DONE, "", later(2))


def test_a_night_is_had_once(store: Store) -> None:
    store.schedules.add(LETTERS)
    store.schedules.add(BILLS)
    assert store.schedules.claim(NIGHT)
    assert not store.schedules.claim(replace(NIGHT, due_at=later(5), reason="another"))
    assert only(store) == NIGHT
    assert store.schedules.claim(replace(NIGHT, schedule_id="bills-1"))
    assert store.schedules.claim(replace(NIGHT, night=date(2026, 11, 22)))


@pytest.mark.long
def test_of_two_processes_that_claim_at_once_one_has_each_night(store: Store, store_url: str) -> None:
    store.schedules.add(LETTERS)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, store_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    had = [int(process.communicate(timeout=PATIENCE)[0]) for process in started]
    assert sum(had) == 20
    assert len(store.schedules.nights()) == 20


def test_nights_are_listed_by_schedule_and_date_and_found_by_date_and_job(store: Store) -> None:
    store.schedules.add(BILLS)
    first = begun(store)
    second = replace(NIGHT, night=date(2026, 11, 22), due_at=later(24))
    of_bills = replace(NIGHT, schedule_id="bills-1", due_at=later(3))
    assert store.schedules.claim(second)
    assert store.schedules.claim(of_bills)

    def dates(found: list[Night]) -> list[tuple[str, int]]:
        return [(night.schedule_id, night.night.day) for night in found]

    assert dates(store.schedules.nights()) == [("letters-1", 21), ("bills-1", 21), ("letters-1", 22)]
    assert dates(store.schedules.nights("letters-1")) == [("letters-1", 21), ("letters-1", 22)]
    assert dates(store.schedules.nights(since=date(2026, 11, 22))) == [("letters-1", 22)]
    found = store.schedules.night_of("letters-1", date(2026, 11, 22))
    assert found is not None
    assert replace(found, id=0) == second
    assert found.id != 0
    assert store.schedules.night_of("letters-1", date(2026, 11, 23)) is None
    store.schedules.given(first, JobId("contracts-1"))
    given = store.schedules.night_of("letters-1", date(2026, 11, 21))
    assert given is not None
    assert given.job_id == "contracts-1"


def test_a_night_from_due_to_done(store: Store) -> None:
    store.schedules.add(LETTERS)
    assert store.schedules.claim(NIGHT)
    store.schedules.waits(NIGHT, "waits for job x")
    assert only(store) == replace(NIGHT, reason="waits for job x")
    store.schedules.begun(NIGHT, "begun 2 h late")
    store.schedules.given(NIGHT, JobId("contracts-1"))
    running = replace(NIGHT, state=NightState.RUNNING, reason="begun 2 h late", job_id=JobId("contracts-1"))
    assert only(store) == running
    assert [night.night for night in store.schedules.unended()] == [NIGHT.night]
    store.schedules.ended(NIGHT, NightState.DONE, "3 rows", later(4))
    assert only(store) == replace(running, state=NightState.DONE, reason="3 rows", ended_at=later(4))
    assert store.schedules.unended() == []


def test_a_night_is_moved_from_where_it_is_only(store: Store) -> None:
    night = begun(store)
    with pytest.raises(StateConflict, match="the night of 2026-11-21 is not in the expected state"):
        store.schedules.begun(night, "again")
    with pytest.raises(StateConflict):
        store.schedules.waits(night, "again")
    with pytest.raises(StateConflict):
        store.schedules.again(night, later(1), "again")
    store.schedules.ended(night, NightState.DONE, "3 rows", later(4))
    for move in (
        lambda: store.schedules.ended(night, NightState.FAILED, "", later(5)),
        lambda: store.schedules.given(night, JobId("x")),
        lambda: store.schedules.again(night, later(5), "again"),
    ):
        with pytest.raises(StateConflict):
            move()
    assert only(store).state is NightState.DONE


@pytest.mark.parametrize("end", [NightState.FAILED, NightState.SKIPPED, NightState.MISSED])
def test_a_night_that_was_left_out_or_failed_may_be_due_again(store: Store, end: NightState) -> None:
    night = begun(store)
    store.schedules.given(night, JobId("contracts-1"))
    store.schedules.ended(night, end, "why", later(4))
    store.schedules.again(night, later(5), "asked for by eva", "eva")
    assert only(store) == replace(
        NIGHT, due_at=later(5), created_at=later(5), reason="asked for by eva", asked_by="eva"
    )


def test_a_date_has_a_run_for_each_time_of_day_and_each_is_had_once(store: Store) -> None:
    store.schedules.add(LETTERS)
    runs = [replace(NIGHT, slot=slot, due_at=later(hours)) for hours, slot in enumerate(("", "14:00", "02:00+"))]
    assert [store.schedules.claim(one) for one in runs] == [True] * 3
    assert [store.schedules.claim(one) for one in runs] == [False] * 3
    assert [one.name for one in store.schedules.nights()] == ["2026-11-21", "2026-11-21 14:00", "2026-11-21 02:00+"]
    second = store.schedules.nights()[1]
    store.schedules.ended(second, NightState.FAILED, "no such file", later(3), "bad_input")
    found = store.schedules.night_of("letters-1", second.night, "14:00")
    assert found is not None
    assert (found.state, found.code) == (NightState.FAILED, "bad_input")
    assert [one.state for one in store.schedules.nights()].count(NightState.FAILED) == 1
    store.schedules.again(found, later(4), "asked for by eva")
    again = store.schedules.night_of("letters-1", second.night, "14:00")
    assert again is not None
    assert (again.state, again.code) == (NightState.DUE, None)


def test_nights_that_are_over_and_those_that_failed_without_a_job(store: Store) -> None:
    store.schedules.add(LETTERS)
    assert store.schedules.get("letters-1") == LETTERS
    assert store.schedules.get("none") is None
    for hours, slot in enumerate(("a", "b", "c")):
        store.schedules.claim(replace(NIGHT, slot=slot, due_at=later(hours)))
    first, second, third = store.schedules.nights()
    store.schedules.ended(first, NightState.FAILED, "no such file", later(5))
    store.schedules.begun(second, "on time")
    store.schedules.given(second, JobId("letters-9"))
    store.schedules.ended(second, NightState.FAILED, "its job failed", later(6))
    assert [one.slot for one in store.schedules.over("letters-1", later(4))] == ["a", "b"]
    assert [one.slot for one in store.schedules.over("letters-1", later(5))] == ["b"]
    [(name, failed)] = store.schedules.failed_without_job("home", later(4))
    assert (name, failed.slot) == ("letters", "a")
    assert store.schedules.failed_without_job("home", later(5.5)) == []
    assert store.schedules.failed_without_job("another", later(4)) == []
    assert third.state is NightState.DUE
