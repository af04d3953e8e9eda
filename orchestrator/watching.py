"""Tells people: of jobs that run where something is wrong, and of those that are over by their report."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrator import alerts
from orchestrator.alerts import Alert, Trouble, Watched
from orchestrator.config import Config
from orchestrator.deliveries import Channel, Message, channels
from orchestrator.durations import HOUR, MINUTE
from orchestrator.errors import OrchError
from orchestrator.home import Home
from orchestrator.model import Job, JobId
from orchestrator.morningpages import headline, markdown, page, title_of
from orchestrator.nightly import night_report
from orchestrator.pipeline.lanes import down_for
from orchestrator.pipeline.planning import Planning
from orchestrator.store import Store
from orchestrator.store.alerts import Told

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
KEPT = timedelta(days=1)
"""How long a report or alert that nobody takes is sent again, and how old a job's end may be that is told of."""
REPORT = "report"


@dataclass(frozen=True, slots=True)
class Standstill:
    """What an engine says that rows do not run for: of jobs by their id, and what its servers tell by their name."""

    jobs: Mapping[str, str]
    servers: Mapping[str, Mapping[str, Any]]


class Watch:
    """Looks once a minute, in a thread of its own: a mail server that does not answer keeps no row waiting."""

    def __init__(self, store: Store, config: Config, ways: Sequence[Channel] | None = None) -> None:
        self._store = store
        self._config = config
        self._home = Home(config.home)
        self._ways = channels(config) if ways is None else ways
        self._again: dict[str, tuple[datetime, float]] = {}
        self._at: datetime | None = None
        self._thread: threading.Thread | None = None

    def tick(self, standstill: Callable[[], Standstill], now: datetime) -> None:
        """Look where a minute has passed, and the look before is over."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._at is not None and self._at <= now < self._at + EVERY:
            return
        self._at = now
        self._thread = threading.Thread(target=self._look_safely, args=(standstill(), now), name="watch")
        self._thread.start()

    def close(self) -> None:
        """Wait for the look that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _look_safely(self, standstill: Standstill, now: datetime) -> None:
        try:
            self.look(standstill, now)
        except OrchError as error:
            log.warning("jobs could not be watched: %s", error)

    def look(self, standstill: Standstill, now: datetime) -> None:
        """Find what there is to tell, and send what was not taken yet. Raises StorageError."""
        home = self._home.identity()
        for job in self._store.jobs.unfinished(home):
            if job.built_at is not None:
                for alert in alerts.due(self._watched(job, standstill, now), self._config.alerts, now):
                    self._raise(alert, now)
        for job_id in self._store.alerts.ended_jobs(home, now - KEPT):
            self._end(job_id, now)
        self._send(home, now)

    def _end(self, job_id: JobId, now: datetime) -> None:
        """Keep what there is to tell of a job that is over, its report for every way."""
        quality = self._store.checked.quality(job_id)
        withheld = None if quality is None else quality.withheld
        for alert in alerts.at_end(self._store.jobs.get(job_id), self._store.jobs.events(job_id), withheld):
            self._raise(alert, now)
        for way in self._ways:
            self._store.alerts.add(Told(f"{REPORT}:{job_id}|{way.name}", now, REPORT, job_id, "", ""))

    def _watched(self, job: Job, standstill: Standstill, now: datetime) -> Watched:
        shards, events = self._store.shards.of_job(job.id), self._store.jobs.events(job.id)
        at = {shard.backend for shard in shards if not shard.state.is_final}
        told = (trouble_at(name, health) for name, health in standstill.servers.items() if name in at)
        troubles = [trouble for trouble in told if trouble is not None]
        if (text := standstill.jobs.get(job.id)) is not None:
            waits = [event.at for event in events if event.kind == "waiting" and event.reason == text]
            troubles.append(Trouble(text, (now - max(waits, default=now)).total_seconds()))
        counts = self._store.jobs.counts([job.id])[job.id]
        return Watched(job, counts, shards, events, self._chance(job, standstill, now), troubles)

    def _chance(self, job: Job, standstill: Standstill, now: datetime) -> float | None:
        if job.deadline_at is None or job.deadline_at <= now:
            return None
        outlook = Planning(self._store, self._config, job, now, down=down_for(standstill.servers)).outlook()
        return None if outlook is None else outlook.chance

    def _raise(self, alert: Alert, now: datetime) -> None:
        """Keep an alert, for every way; the first time, it is an event of its job."""
        for way in self._ways:
            key = f"{alert.key}|{way.name}"
            self._store.alerts.add(Told(key, now, alert.kind, alert.job.id, alert.message, alert.action))
        # Behind those: where this one is known, none of them is missing.
        if self._store.alerts.add(Told(alert.key, now, alert.kind, alert.job.id, alert.message, alert.action, now)):
            told = f"{alert.kind}: {alert.message}; {alert.action}"
            self._store.jobs.note(alert.job.id, "alert", told, now)
            log.warning("%s: %s", alert.job.id, told)

    def _send(self, home: str, now: datetime) -> None:
        ways = {way.name: way for way in self._ways}
        for told in self._store.alerts.unsent(home, now - KEPT):
            way = ways.get(told.key.rpartition("|")[2])
            at, _ = self._again.get(told.key, (now, 0.0))
            job = self._store.jobs.find(told.job_id)
            if way is None or job is None or now < at:
                continue
            try:
                way.send(self._message(told, job, now))
            except OrchError as error:
                self._put_off(told, error, now)
            else:
                self._again.pop(told.key, None)
                self._store.alerts.sent(told.key, now)

    def _put_off(self, told: Told, error: OrchError, now: datetime) -> None:
        """Send it again: after a minute, then after twice as long each time, up to an hour."""
        _, pause = self._again.get(told.key, (now, 0.0))
        if not pause:
            what = REPORT if told.kind == REPORT else f"{told.kind} alert"
            reason = f"the {what} was not taken, and is sent again for a day: {error.message}"
            self._store.jobs.note(told.job_id, "undelivered", reason, now)
            log.warning("%s: %s", told.job_id, reason)
        pause = min(HOUR, max(MINUTE, 2 * pause))
        self._again[told.key] = now + timedelta(seconds=pause), pause

    def _message(self, told: Told, job: Job, now: datetime) -> Message:
        if told.kind == REPORT:
            return self._report(job, now)
        subject = f"{job.name}: {told.kind} alert"
        brief = f"{told.message}\nWhat was done: {told.action}\nJob {job.id}, {told.at:%Y-%m-%d %H:%M} UTC"
        stamp = f"{told.at:%Y%m%d-%H%M%S}"
        return Message(f"alert-{stamp}-{told.kind}-{job.id}", subject, brief, f"# {subject}\n\n{brief}\n")

    def _report(self, job: Job, now: datetime) -> Message:
        report = night_report(self._store, self._home, None, [job], now)
        needs = "".join(f"\n• {need}" for _, need in report.needs)
        day = f"{job.created_at.astimezone():%Y-%m-%d}"
        return Message(
            name=f"night-{day}-{job.id}",
            subject=f"{title_of(report)}, {day}: {report.jobs[0].facts.state}",
            brief=headline(report) + needs,
            text=markdown(report),
            page=page(report),
        )


def trouble_at(name: str, health: Mapping[str, Any]) -> Trouble | None:
    """What is wrong with a server of ours that has work, by what it says of itself: none of its upstreams answers."""
    upstreams = health["upstreams"]
    if not health["running_batches"] or not all(upstream["problem"] for upstream in upstreams):
        return None
    first = min(upstreams, key=lambda upstream: float(upstream["problem_seconds"]))
    return Trouble(f"{name}: {first['url']}: {first['problem']}", float(first["problem_seconds"]))
