"""A home that is watched: alerts once, reports once, each on every way, and sent again until they are taken."""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import BackendError
from orchestrator.core.model import JobId
from orchestrator.core.schedules import Misfire, Night, NightState, Overlap, Schedule
from orchestrator.daemon.channels import Message
from orchestrator.daemon.monitor import KEPT, Monitor, Obstacle, Standstill
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import locate
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.quality import Quality
from tests.support.nights import SPEC, Nights
from tests.support.process import wait_until
from tests.support.stored import NOW, added, later, ranges, shard

LATE = "the deadline of Sat 2026-11-21 21:00 UTC has passed: without an answer: 3 of 3 rows"
DEADLINE = f"contracts, Sat 2026-11-21: deadline alert: {LATE}"
GOOD = "contracts, Sat 2026-11-21: all 2 rows answered, nothing to do"
BAD = [
    "contracts, Sat 2026-11-21: quality alert: judged by known answers: 50.0% is below the threshold of 95.0%",
    "contracts, Sat 2026-11-21: all 2 rows answered, output not delivered, 1 needs attention",
]
CALM = Standstill({}, {})
CONFIG = """
[backends.cloud]
kind = "openai"
api_key_env = "UNSET"
profile = "openai"

[models]
m = "m"

[prices.m]
input = 1
output = 2
"""
FIRST: dict[str, Any] = {"a": {"party": "A"}, "b": {"party": "B"}}


class Way:
    """Keeps what is sent; refuses as long as `refuses`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.taken: list[Message] = []
        self.asked = 0
        self.refuses = False
        self.gate = threading.Event()
        self.gate.set()

    def send(self, message: Message) -> None:
        self.asked += 1
        self.gate.wait()
        if self.refuses:
            raise BackendError("nobody is there")
        self.taken.append(message)


class Watched:
    """A home with its watch, and the ways on which it tells."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store, self.config = store, config
        self.ways = [Way("one"), Way("two")]
        self.home = Home(config.home)

    def watch(self) -> Monitor:
        return Monitor(self.store, self.config, self.ways)

    def subjects(self) -> list[list[str]]:
        return [[message.subject for message in way.taken] for way in self.ways]

    def events(self, job: str, kind: str) -> list[str]:
        return [event.reason for event in self.store.jobs.events(self.store.jobs.get(job).id) if event.kind == kind]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    (tmp_path / "orch.toml").write_text(CONFIG)
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    return load(locate())


@pytest.fixture
def watched(place: Config) -> Any:
    with Store.open(f"sqlite:///{place.home / 'orch.db'}") as store:
        yield Watched(store, place)


def open_job(watched: Watched, **facts: Any) -> None:
    facts = {"home": watched.home.identity(), "spec": SPEC, "built_at": NOW, "options": {"carry": True}, **facts}
    added(watched.store, **facts)


def test_an_alert_goes_once_on_every_way_and_is_an_event(watched: Watched) -> None:
    open_job(watched, deadline_at=later(1))
    for hours in (1.5, 2, 3):
        watched.watch().look(CALM, later(hours))
    assert watched.subjects() == [[DEADLINE]] * 2
    [message] = watched.ways[0].taken
    assert "has passed: without an answer: 3 of 3 rows" in message.text
    assert "Action taken: the job finishes late" in message.brief
    assert re.fullmatch("alert-20261121-213000-deadline-contracts-1-[0-9a-f]{6}", message.name)
    assert message.page is None
    [event] = watched.events("contracts-1", "alert")
    assert event.startswith(f"deadline: {LATE}")


def test_an_alert_names_the_run_of_a_schedule_with_several_a_day(watched: Watched) -> None:
    open_job(watched, deadline_at=later(1))
    at, why = later(0), "so it was"
    run_at = Night("s", at.date(), at, NightState.DONE, why, at, job_id=JobId("contracts-1"), slot="20:00")
    watched.store.schedules.add(
        Schedule(
            id="s", name="contracts", home="home", config="/orch.toml", file="/job.yaml", cron="0 * * * *", tz="UTC",
            deadline=None, budget=None, misfire=Misfire.RUN, grace=timedelta(hours=6), overlap=Overlap.SKIP,
            created_at=NOW, since=NOW,
        )
    )  # fmt: skip
    assert watched.store.schedules.claim(run_at)
    watched.watch().look(CALM, later(1.5))
    assert watched.subjects() == [[DEADLINE.replace(f"{at:%Y-%m-%d}", f"{at:%Y-%m-%d} 20:00", 1)]] * 2


def test_a_deadline_at_risk_is_known_from_the_plan(watched: Watched) -> None:
    open_job(watched, deadline_at=later(1))
    watched.watch().look(CALM, later(0.5))
    watched.watch().look(CALM, later(0.6))
    [event] = watched.events("contracts-1", "alert")
    assert "is at risk: met with" in event


def test_a_job_that_no_backend_may_run_is_watched_all_the_same(watched: Watched) -> None:
    open_job(watched, deadline_at=later(0.5), options={"backend": "gone"})
    still = Standstill({"contracts-1": Obstacle("backend", "backend gone is away", NOW)}, {})
    watched.watch().look(still, NOW)
    assert watched.events("contracts-1", "alert") == [], "it has only begun"
    watched.watch().look(still, later(0.1))
    assert watched.events("contracts-1", "alert")[0].startswith("backend: backend gone is away, for 6 min;")
    told = watched.store.jobs.events(watched.store.jobs.get("contracts-1").id)
    assert [event.code for event in told if event.kind == "alert"] == ["backend"]


def test_a_server_without_upstreams_is_told_to_the_jobs_that_are_there(watched: Watched) -> None:
    open_job(watched)
    open_job(watched, job_id="other-1", name="other")
    job = watched.store.jobs.get("contracts-1")
    down = {"url": "http://127.0.0.1:1/v1", "problem": "refused", "problem_seconds": 300}
    still = Standstill({}, {"gpu": {"running_batches": 1, "upstreams": [down]}})
    watched.watch().look(still, NOW)
    assert watched.events("contracts-1", "alert") == []
    [found] = ranges(watched.store, job)
    watched.store.shards.add(shard(job), found)
    watched.watch().look(still, NOW)
    [event] = watched.events("contracts-1", "alert")
    assert event.startswith("backend: gpu: http://127.0.0.1:1/v1: refused, for 5 min;")
    assert watched.events("other-1", "alert") == []


def test_a_job_that_is_over_is_reported_once_on_every_way(watched: Watched) -> None:
    nights = Nights(watched.store, watched.home)
    nights.finish(nights.run(FIRST, at=NOW), later(2))
    watched.watch().look(CALM, later(3))
    watched.watch().look(CALM, later(4))
    assert watched.subjects() == [[GOOD]] * 2
    [message] = watched.ways[1].taken
    assert message.name == "night-2026-11-21-contracts-1"
    assert "nothing needs attention" in message.brief
    assert message.text.startswith("# contracts, Sat 2026-11-21\n")
    assert message.page is not None
    assert "<svg" in message.page
    broken = nights.run(FIRST, at=later(5))
    watched.store.jobs.fail(broken.id, "no such model")
    watched.watch().look(CALM, later(6))
    assert watched.subjects()[0][1] == "contracts, Sat 2026-11-21: failed, all 2 rows answered, 1 needs attention"
    assert "• the job could not continue: no such model" in watched.ways[0].taken[1].brief


def test_a_job_that_was_not_good_enough_is_told_at_its_end(watched: Watched) -> None:
    nights = Nights(watched.store, watched.home)
    run = nights.finish(nights.run(FIRST, at=NOW), later(2))
    watched.store.quality.note(run.id, Quality(1, 2, 2, 0, "50.0% is below the threshold of 95.0%"), later(2))
    watched.watch().look(CALM, later(3))
    watched.watch().look(CALM, later(4))
    assert watched.subjects() == [BAD] * 2
    [event] = watched.events("contracts-1", "alert")
    assert event.startswith("quality: judged by known answers: 50.0% is below the threshold of 95.0%;")
    assert "1 item needs attention" in watched.ways[0].taken[1].brief


def test_old_ends_are_not_told(watched: Watched) -> None:
    nights = Nights(watched.store, watched.home)
    nights.finish(nights.run(FIRST, at=NOW), later(2))
    watched.watch().look(CALM, later(2) + KEPT + timedelta(seconds=1))
    assert watched.subjects() == [[], []]
    watched.ways.clear()
    watched.watch().look(CALM, later(3))
    assert watched.store.alerts.of_job(watched.store.jobs.get("contracts-1").id) == [], "there is no way to tell it"


@pytest.mark.long
def test_what_is_not_taken_is_sent_again_ever_more_slowly(watched: Watched) -> None:
    nights = Nights(watched.store, watched.home)
    nights.finish(nights.run(FIRST, at=NOW), later(2))
    good, bad = watched.ways
    bad.refuses, watch = True, watched.watch()
    for minute in range(60):
        watch.look(CALM, later(3) + timedelta(minutes=minute))
    assert (len(good.taken), good.asked) == (1, 1)
    assert bad.asked == 6, "after 1, 2, 4, 8, 16 and 32 minutes"
    assert watched.events("contracts-1", "undelivered") == [
        "the report was not accepted and is retried for a day: nobody is there"
    ]
    bad.refuses = False
    watched.watch().look(CALM, later(5))
    assert len(bad.taken) == 1, "a new process knows of no pause"


def test_what_goes_on_a_way_that_is_no_longer_named_waits(watched: Watched) -> None:
    open_job(watched, deadline_at=later(1))
    watched.ways[1].refuses = True
    watched.watch().look(CALM, later(2))
    del watched.ways[1]
    watched.watch().look(CALM, later(2.5))
    assert watched.subjects() == [[DEADLINE]]


def test_ticks_are_a_minute_apart_and_never_two_at_once(watched: Watched) -> None:
    open_job(watched, deadline_at=later(1))
    slow = watched.ways[0]
    slow.gate.clear()
    asked: list[int] = []

    def standstill() -> Standstill:
        asked.append(1)
        return CALM

    watch = watched.watch()
    try:
        watch.tick(standstill, later(2))
        wait_until(lambda: slow.asked == 1)
        watch.tick(standstill, later(3))
        assert len(asked) == 1, "the look before is still under way"
    finally:
        slow.gate.set()
        watch.close()
    assert watched.subjects() == [[DEADLINE]] * 2
    watch.tick(standstill, later(2) + timedelta(seconds=59))
    assert len(asked) == 1
    watch.tick(standstill, later(2) + timedelta(seconds=60))
    watch.close()
    assert len(asked) == 2
    watch.tick(standstill, later(1))
    watch.close()
    assert len(asked) == 3, "a clock that was set back stops no watch"


def test_a_database_that_fails_ends_no_daemon(place: Config, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(f"sqlite:///{place.home / 'empty.db'}")
    watch = Monitor(store, place, [])
    watch.tick(lambda: CALM, NOW)
    watch.close()
    store.close()
    assert "jobs could not be monitored" in caplog.text
