"""What was written where, jobs that ended without their rows where they belong, and homes of the version before."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine, text

from orchestrator.core.errors import OutputFault, StateConflict
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, JobFault, JobId
from orchestrator.core.schedules import NightState
from orchestrator.store import Store
from orchestrator.store.alerts import AlertRecord
from orchestrator.store.database import migrations_folder
from orchestrator.store.records import WrittenOutput
from tests.support.stored import NOW, added, job, later


def ended(store: Store, job_id: str = "contracts-1", *, hours: float = 1, code: str | None = None) -> Job:
    new = added(store, job_id=job_id)
    store.jobs.mark_built(new.id, NOW)
    store.jobs.finish(new.id, "/out.jsonl", later(hours), error=code and "cannot write", code=code)
    return store.jobs.get(new.id)


def test_what_was_written_is_known_by_home_and_place(store: Store) -> None:
    first = WrittenOutput("/data/rows.csv", "series", JobId("a-1"), "sha256:1", NOW)
    store.outputs.note("home", first)
    assert store.outputs.find("home", "/data/rows.csv") == first
    assert store.outputs.find("another", "/data/rows.csv") is None
    assert store.outputs.find("home", "/data/rows") is None
    second = WrittenOutput("/data/rows.csv", "", JobId("a-2"), None, later(1))
    store.outputs.note("home", second)
    assert store.outputs.find("home", "/data/rows.csv") == second


@pytest.mark.parametrize("place", ["x" * 5000, "/data/\udcff.csv", "s3://bucket/ü"], ids=["long", "no text", "plain"])
def test_any_place_is_remembered(store: Store, place: str) -> None:
    store.outputs.note("home", WrittenOutput(place, "s", JobId("a-1"), None, NOW))
    assert store.outputs.find("home", place) is not None
    assert store.outputs.find("home", place + "x") is None


def test_jobs_that_could_not_deliver_are_found_until_they_have(store: Store) -> None:
    old = ended(store, "old-1", hours=-30, code=OutputFault.UNREACHABLE)
    new = ended(store, "new-1", code=OutputFault.UNREACHABLE)
    ended(store, "full-1", code=OutputFault.NO_ROOM)
    ended(store, "well-1")
    store.jobs.fail(added(store, job_id="broken-1").id, "no such model", JobFault.INPUT)
    assert new.is_undelivered
    codes = [OutputFault.UNREACHABLE]
    assert [one.id for one in store.jobs.undelivered("home", codes, NOW - timedelta(days=1))] == [new.id]
    assert [one.id for one in store.jobs.undelivered("home", codes, NOW - timedelta(days=9))] == [old.id, new.id]
    store.jobs.not_delivered(new.id, "is full", OutputFault.NO_ROOM)
    assert store.jobs.get(new.id).error_code == OutputFault.NO_ROOM
    store.jobs.delivered(new.id, "/data/rows.csv")
    done = store.jobs.get(new.id)
    assert (done.error, done.error_code, done.output_path) == (None, None, "/data/rows.csv")
    assert store.jobs.has_delivered("home", "series", "/data/rows.csv")
    assert not store.jobs.has_delivered("home", "another", "/data/rows.csv")
    with pytest.raises(StateConflict):
        store.jobs.delivered(new.id, "/data/rows.csv")


def test_a_finished_job_is_opened_once_more_with_what_it_may_do(store: Store) -> None:
    new = ended(store, code=OutputFault.EXISTS)
    store.jobs.reopen(new.id, overwrite=True)
    again = store.jobs.get(new.id)
    assert (again.finished_at, again.error, again.error_code, again.output_path) == (None, None, None, None)
    assert again.options["overwrite"] is True
    assert [one.id for one in store.jobs.unfinished("home")] == [new.id]
    with pytest.raises(StateConflict):
        store.jobs.reopen(new.id)


def test_a_note_on_a_job_that_was_removed_is_nothing(store: Store) -> None:
    store.jobs.note(JobId("gone-1"), EventKind.WAITING, "for nobody", NOW)
    assert store.jobs.events(JobId("gone-1")) == []


def test_what_no_job_is_the_matter_of_is_told_by_its_home_alone(store: Store) -> None:
    told = AlertRecord(
        "settings::x:home|mail", NOW, "settings", None, "orch.toml is gone", "put it back", home="home"
    )
    assert store.alerts.add(told)
    assert not store.alerts.add(told)
    assert store.alerts.unsent("home", NOW) == [told]
    assert store.alerts.unsent("another", NOW) == []
    store.alerts.sent(told.key, later(1))
    assert store.alerts.unsent("home", NOW) == []


def migrated(url: str, to: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    engine = create_engine(url)
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, to)
        connection.commit()
    engine.dispose()


BEFORE: list[tuple[str, dict[str, Any]]] = [
    (
        "INSERT INTO jobs (id, home, series, identity, name, kind, source, spec, options, created_at, finished_at,"
        " output_path) VALUES ('a-1', 'home', 's', 'i', 'a', 'documents', '/a.yaml', '{}', '{}', 1, 2, '/rows.csv')",
        {},
    ),
    (
        "INSERT INTO schedules (id, name, home, config, file, cron, tz, misfire, grace_seconds, overlap, created_at,"
        " since) VALUES ('s-1', 's', 'home', '/orch.toml', '/a.yaml', '0 22 * * *', 'UTC', 'run', 60, 'skip', 1, 1)",
        {},
    ),
    (
        "INSERT INTO nights (schedule_id, night, due_at, state, reason, job_id, created_at)"
        " VALUES ('s-1', '2026-11-20', 1795212000000000, 'done', 'so it was', 'a-1', 1)",
        {},
    ),
    ("INSERT INTO alerts (key, at, kind, job_id, message, action) VALUES ('k', 1, 'budget', 'a-1', 'm', 'a')", {}),
]


@pytest.mark.slow
def test_a_home_of_the_version_before_keeps_all_that_it_has(database_url: str) -> None:
    migrated(database_url, "0003")
    engine = create_engine(database_url)
    with engine.begin() as connection:
        for statement, values in BEFORE:
            connection.execute(text(statement), values)
    engine.dispose()
    with Store.open(database_url) as store:
        [one] = store.schedules.all()
        [night] = store.schedules.nights()
        assert (one.id, one.after) == ("s-1", None)
        assert (night.name, night.slot, night.state, night.code) == ("2026-11-20", "", NightState.DONE, None)
        assert not store.schedules.claim(night), "a date has one night, as before"
        assert [told.key for told in store.alerts.unsent("home", job().created_at - timedelta(days=30_000))] == ["k"]
        assert store.jobs.get("a-1").error_code is None
        assert store.jobs.has_delivered("home", "s", "/rows.csv"), "what was delivered before is orch's own"
