"""Night after night on a settable clock: letters that change, a daemon that is killed, a provider with bad nights.

Every text is written once and never again, but for a letter that is mended: it is as it was. So what must be asked is
known by text, and asked once; and every answer can be computed from the text by whoever gave it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from orchestrator.core.model import Job
from orchestrator.core.schedules import Night, NightState
from orchestrator.store import Store
from tests.emulator.answers import CHAT, Body, read
from tests.emulator.client import Emulator
from tests.support.answers import echo
from tests.support.cli import Orch, Process, kill_group
from tests.support.hostedjob import HOUR, MODEL, cost_of
from tests.support.process import Upstream, wait_until

SPEED = 300.0
"""Five minutes of the clock a second."""
LETTERS = 16
WAIT = 90.0
ZONE = ZoneInfo("Europe/Berlin")
QUESTION = "Who wrote this?"
JOB = f"""\
name: letters
documents: {{path: documents}}
tasks:
  - {{id: sender, model: small, max_tokens: 50, prompt: "{QUESTION}"}}
models: {{small: {MODEL}}}
"""
UNREADABLE = b"\xff\xfe\x00\xd8\x01"
"""It says that it is UTF-16, and is not."""

Json = dict[str, Any]


class Fate(StrEnum):
    """What a night meets, besides a kill."""

    PLAIN = "plain"
    OUTAGE = "outage"  # the provider answers nothing but 503 for hours
    STALL = "stall"  # its batch would take a day and more
    MISSED = "missed"  # nobody is there until the deadline has passed


def prompt_of(text: str) -> str:
    """What is sent of a letter."""
    return f"<document>\n{text}\n</document>\n\n{QUESTION}"


def digest_of(text: str) -> str:
    """What the provider knows a letter by."""
    return read(Body(model=MODEL, messages=[{"role": "user", "content": prompt_of(text)}]), CHAT).digest.hex()


class Letters:
    """The documents, and what a seeded clerk does to them by day. A text of None cannot be read."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        folder.mkdir()
        self.folder = folder
        self.now: dict[str, str | None] = {}
        self.asked: set[str] = set()
        self._was: dict[str, str] = {}
        self._dice = dice
        self._written = 0
        for _ in range(LETTERS):
            self._add()

    def a_day_passes(self) -> None:
        """Two are added, two edited, one deleted, one broken, and one of those broken before is mended."""
        broken = [name for name, text in self.now.items() if text is None]
        readable = [name for name, text in self.now.items() if text is not None]
        edited, edited_too, deleted, ruined = self._dice.sample(readable, 4)
        for name in (edited, edited_too):
            self._write(name)
        self._path(deleted).unlink()
        del self.now[deleted]
        self._was[ruined] = str(self.now[ruined])
        self._path(ruined).write_bytes(UNREADABLE)
        self.now[ruined] = None
        if broken:
            mended = self._dice.choice(broken)
            self._put(mended, self._was[mended])
        for _ in range(2):
            self._add()

    def read_by_night(self) -> dict[str, str | None]:
        """A night has asked of all that there is."""
        self.asked |= {text for text in self.now.values() if text is not None}
        return dict(self.now)

    def _add(self) -> None:
        self._write(f"letter-{self._written:03}")

    def _write(self, name: str) -> None:
        self._written += 1
        self._put(name, f"Dear {name}, this is text {self._written}. Yours, {self._dice.choice('ABCDEFGH')}.")

    def _put(self, name: str, text: str) -> None:
        self._path(name).write_text(text, encoding="utf-8")
        self.now[name] = text

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.txt"


@dataclass
class Fortnight:
    """A home with a schedule, before a cheap Batch API and an engine of its own that costs more.

    What is waited for is seen in the database, which costs the machine less than a command does.
    """

    orch: Orch
    store: Store
    provider: Emulator
    gpu: Upstream
    env: dict[str, str]
    letters: Letters
    dice: random.Random
    states: dict[str, str] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    before: dict[str, str | None] = field(default_factory=dict)
    daemon: Process | None = None

    def ask(self, *arguments: str) -> Any:
        ran = self.orch(*arguments, "--json", env=self.env, timeout=WAIT)
        assert ran.stdout, ran.stderr
        return json.loads(ran.stdout)

    def start(self) -> None:
        self.daemon = self.orch.start("up", env=self.env)

    def kill(self) -> None:
        assert self.daemon is not None
        kill_group(self.daemon)
        self.daemon.wait(WAIT)

    def stop(self) -> None:
        assert self.daemon is not None
        self.daemon.terminate()
        assert self.daemon.wait(WAIT) == 0, self.orch.output(self.daemon)

    def live(self, night: date, fate: Fate) -> None:
        """A day, and the night behind it."""
        due = datetime.combine(night, time(22), ZONE)
        self.letters.a_day_passes()
        if fate is Fate.MISSED:
            self._miss(night, due)
            return
        if fate is Fate.OUTAGE:
            self.provider.script({"do": "status", "status": 503, "times": None})
        self.provider.settings(turnaround_s=[25 * HOUR] * 2 if fate is Fate.STALL else [600, 600])
        self.provider.clock.set(due, speed=SPEED)
        killed_at = due + timedelta(minutes=self.dice.uniform(0, 20))
        wait_until(lambda: self.provider.clock.now() >= killed_at, WAIT)
        self.kill()
        self.start()
        if fate is Fate.OUTAGE:
            self._outage_ends(night)
        elif fate is Fate.STALL:
            self._rescue_comes(night)
        wait_until(lambda: self._ended(night), WAIT)
        self.provider.clock.set(speed=SPEED)
        self.states[str(night)] = "done"
        self.check(fate)

    def _miss(self, night: date, due: datetime) -> None:
        self.stop()
        self.provider.clock.set(due + timedelta(hours=9))
        self.start()
        wait_until(lambda: self._ended(night), WAIT)
        self.states[str(night)] = "missed"
        self._last_record()

    def _ended(self, night: date) -> bool:
        record = self._record(night)
        return record is not None and record.state not in (NightState.DUE, NightState.RUNNING)

    def _record(self, night: date) -> Night | None:
        [schedule] = self.store.schedules.all()
        return self.store.schedules.night_of(schedule.id, night)

    def _begun(self, night: date) -> Job:
        """The night's job, once a shard of it is made."""

        def look() -> Job | None:
            record = self._record(night)
            if record is None or record.job_id is None:
                return None
            return self.store.jobs.get(record.job_id) if self.store.shards.of_job(record.job_id) else None

        return wait_until(look, WAIT)

    def _outage_ends(self, night: date) -> None:
        """Two hours after it is felt."""
        job = self._begun(night)
        wait_until(lambda: [shard for shard in self.store.shards.of_job(job.id) if shard.held], WAIT)
        self.provider.clock.advance(2 * HOUR)
        self.provider.clear()

    def _rescue_comes(self, night: date) -> None:
        """Nothing happens until the batch must be brought home: a moment that is known better the nearer it is.

        The planner looks again each minute of the clock, which has to leave a busy machine some time for it.
        """
        job = self._begun(night)
        wait_until(lambda: [shard for shard in self.store.shards.of_job(job.id) if shard.batch_id], WAIT)
        while not self._is_rescued(job):
            reroute = (self.ask("status", job.id)["outlook"] or {}).get("reroute")
            at = datetime.fromisoformat(reroute["at"]) - timedelta(seconds=90) if reroute else None
            if at is None or at <= self.provider.clock.now() + timedelta(seconds=30):
                break
            self.provider.clock.set(at, speed=SPEED / 30)
        wait_until(lambda: self._is_rescued(job), WAIT)
        self.provider.clock.set(speed=SPEED / 10)

    def _is_rescued(self, job: Job) -> bool:
        return any(event.kind == "rerouted" for event in self.store.jobs.events(job.id))

    # --- what must be so in the morning

    def _last_record(self) -> Json:
        """What is told of the last night, where all nights are told as they were."""
        told: list[Json] = self.ask("schedule", "nights")
        assert {one["night"]: one["state"] for one in told} == self.states
        return told[-1]

    def check(self, fate: Fate) -> None:
        """Each answer, each dollar, and what the night says of itself."""
        record = self._last_record()
        job = record["job"]
        assert job not in self.jobs
        self.jobs.append(job)
        now = self.letters.read_by_night()
        self._check_answers(job, now)
        self._check_payments()
        found = self.ask("status", job)
        unreadable = sum(text is None for text in now.values())
        counts = found["requests"]
        assert (found["state"], counts["total"]) == ("completed", len(now))
        assert (counts["succeeded"], counts["failed"]) == (len(now) - unreadable, unreadable)
        assert record["reason"].startswith(f"{len(now)} rows: {len(now) - unreadable} succeeded")
        assert found["finished_at"] <= found["deadline_at"], found["events"]
        assert bool([event for event in found["events"] if event["kind"] == "rerouted"]) == (fate is Fate.STALL)
        self._check_report(job, now, found["cost_usd"])
        self.before = now

    def _check_answers(self, job: str, now: dict[str, str | None]) -> None:
        """Every letter there is has one row, with the answer to the text that it has tonight."""
        lines = self.orch("fetch", job, "--format", "jsonl", env=self.env, timeout=WAIT).stdout.splitlines()
        rows = {Path(row["document"]).stem: row for row in map(json.loads, lines)}
        assert (len(lines), rows.keys()) == (len(now), now.keys())
        for name, text in now.items():
            row = rows[name]
            if text is None:
                assert (row["status"], row["error"]["code"]) == ("failed", "encoding"), row
                continue
            hosted = row["provenance"]["backend"] == "openai"
            wanted = f"answer {digest_of(text)}" if hosted else echo(prompt_of(text))
            assert (row["status"], row["output"]) == ("succeeded", wanted), row

    def _check_payments(self) -> None:
        """Each text that a night has seen was answered once, by one of the two; and the books are the bill."""
        bill = self.provider.bill(rows=True)
        asked = Counter(bill["asked"]) + Counter(self._asked_here())
        assert asked == Counter(digest_of(text) for text in self.letters.asked)
        costs = self.ask("report", "cost", "--by", "backend")
        by_backend = {line["group"]: Decimal(line["cost_usd"]) for line in costs["lines"]}
        assert by_backend["openai"] == cost_of(bill)
        by_job = [Decimal(line["cost_usd"]) for line in self.ask("report", "cost", "--by", "job")["lines"]]
        told = [Decimal(job["cost_usd"]) for job in self.ask("status")]
        assert sum(by_backend.values()) == sum(by_job) == sum(told) == Decimal(costs["total"]["cost_usd"])

    def _asked_here(self) -> list[str]:
        """What the engine of our own was asked of letters, as the provider would know it."""
        bodies = [json.loads(entry["body"]) for entry in self.gpu.requests()]
        texts = [body["messages"][-1]["content"] for body in bodies]
        inside = [text.split("<document>\n")[1].split("\n</document>")[0] for text in texts if "<document>" in text]
        return [digest_of(text) for text in inside]

    def _check_report(self, job: str, now: dict[str, str | None], cost: str) -> None:
        """The morning's page has each document by what became of it since the last night that was run."""
        [told] = self.ask("report", "night", job)["jobs"]
        both = now.keys() & self.before.keys()
        readable = {name for name, text in now.items() if text is not None}
        wanted = {
            "new": len(readable - self.before.keys()),
            "changed": sum(now[name] != self.before[name] for name in both & readable),
            "unchanged": sum(now[name] == self.before[name] for name in both & readable),
            "removed": len(self.before.keys() - now.keys()),
            "unreadable": len(now) - len(readable),
        }
        fates = {fate: of["documents"] for fate, of in told["documents"].items() if of["documents"]}
        assert fates == {fate: number for fate, number in wanted.items() if number}
        assert (told["cost_usd"], told["deadline"]["met"]) == (cost, True)
