"""Messages to people: alerts about jobs with problems, and reports about finished jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from orchestrator.core.clock import night_of
from orchestrator.core.counts import Counts
from orchestrator.core.durations import HOUR, MINUTE, moment_words
from orchestrator.core.errors import BackendRefused, OrchError
from orchestrator.core.events import EventKind
from orchestrator.core.fail_on import Failing
from orchestrator.core.model import Job, JobId
from orchestrator.core.sanitize import shortened
from orchestrator.core.schedules import night_title
from orchestrator.core.shards import Shard
from orchestrator.daemon.health import down_for, lost
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.pipeline.plan.mixed_planning import planning_of
from orchestrator.policy import alerts
from orchestrator.policy.alerts import Alert, AlertKind, MonitoredJob, Notice, Trouble
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.alerts import AlertRecord

if TYPE_CHECKING:
    from orchestrator.daemon.channels import Channel, Message

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
KEPT = timedelta(days=1)
"""Time for which orch retries a report or alert. A job that ended earlier gets no report."""
REPORT = "report"
MOST_SUBJECT = 100
"""Maximum characters of an alert in a message's subject."""


class Obstacle(Struct, frozen=True):
    """The reason why a job cannot continue, and since when. A different `code` is a different obstacle."""

    code: str
    text: str
    since: datetime


class Standstill(Struct, frozen=True):
    """A daemon's reasons why rows do not run, by job id, and the health reports of its servers, by backend.

    `notices` are the daemon's other messages.
    """

    jobs: Mapping[str, Obstacle]
    servers: Mapping[str, Mapping[str, Any]]
    notices: Sequence[Notice] = ()


class Monitor:
    """Finds and sends messages once a minute, in a thread, so that a mail server that hangs delays no row."""

    def __init__(self, store: Store, config: Config, given: Sequence[Channel] | None = None) -> None:
        self._store = store
        self._config = config
        self._home = Home(config.home)
        self._given = given
        self._again: dict[str, tuple[datetime, float]] = {}
        self._at: datetime | None = None
        self._thread: threading.Thread | None = None

    def use(self, config: Config) -> None:
        """Use these settings from the next check on."""
        self._config = config

    @property
    def _channels(self) -> Sequence[Channel]:
        if self._given is not None:
            return self._given
        from orchestrator.daemon.channels import channels

        return channels(self._config)

    def tick(self, standstill: Callable[[], Standstill], now: datetime) -> None:
        """Call `look` in a thread if a minute has passed and the previous call has ended."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._at is not None and self._at <= now < self._at + EVERY:
            return
        self._at = now
        self._thread = threading.Thread(target=self._look_safely, args=(standstill(), now), name="monitor")
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _look_safely(self, standstill: Standstill, now: datetime) -> None:
        with _errors_logged("jobs"):
            self.look(standstill, now)

    def look(self, standstill: Standstill, now: datetime) -> None:
        """Find new messages, and send all unsent messages. Raises StorageError.

        A problem with one job or channel is logged, and does not affect the others.
        """
        home = self._home.identity()
        for notice in (*standstill.notices, *self._failed_nights(home, now)):
            self._queue_notice(notice, home, now)
        for job in self._store.jobs.unfinished(home):
            with _errors_logged(job.id):
                self._look_at(job, standstill, now)
        for job_id in self._store.alerts.ended_jobs(home, now - KEPT):
            with _errors_logged(job_id):
                self._queue_end_messages(job_id, now)
        self._send(home, now)

    def _look_at(self, job: Job, standstill: Standstill, now: datetime) -> None:
        # An unbuilt job has only events to look at.
        watched = self._watched(job, standstill, now) if job.built_at is not None else None
        watched = watched or MonitoredJob(job, Counts(), events=self._store.jobs.events(job.id))
        for alert in alerts.due(watched, self._config.alerts, now):
            self._queue_alert(alert, now)

    def _failed_nights(self, home: str, now: datetime) -> Iterator[Notice]:
        for name, night in self._store.schedules.failed_without_job(home, now - KEPT):
            reason = night.reason.partition("\n")[0]
            again = f"it waits for you: fix it, then run it with `orch schedule run {name}`"
            what = f"{night.schedule_id}:{night.name}:{night.created_at:%Y%m%d%H%M%S}"
            yield Notice(AlertKind.NIGHT, what, f"{name}, night of {night.name}: {reason}", again)

    def _queue_end_messages(self, job_id: JobId, now: datetime) -> None:
        quality, job = self._store.quality.of(job_id), self._store.jobs.get(job_id)
        withheld = None if quality is None else quality.withheld
        watched = MonitoredJob(job, *self._counts(job), events=self._store.jobs.events(job_id))
        for alert in alerts.at_end(watched, self._config.alerts, withheld):
            self._queue_alert(alert, now)
        for channel in self._channels:
            self._store.alerts.add(AlertRecord(f"{REPORT}:{job_id}|{channel.name}", now, REPORT, job_id, "", ""))

    def _watched(self, job: Job, standstill: Standstill, now: datetime) -> MonitoredJob:
        shards, events = self._store.shards.of_job(job.id), self._store.jobs.events(job.id)
        at = {shard.backend for shard in shards if not shard.state.is_final}
        told = (trouble_at(name, health) for name, health in standstill.servers.items() if name in at)
        troubles = [trouble for trouble in told if trouble is not None]
        if (problem := standstill.jobs.get(job.id)) is not None:
            troubles.append(Trouble(problem.code, problem.text, (now - problem.since).total_seconds()))
        return MonitoredJob(job, *self._counts(job), shards, events, self._chance(job, standstill, now), troubles)

    def _counts(self, job: Job) -> tuple[Counts, Failing]:
        return self._store.jobs.counts([job.id])[job.id], self._store.failures.of_jobs([job.id])[job.id]

    def _chance(self, job: Job, standstill: Standstill, now: datetime) -> float | None:
        if job.deadline_at is None or job.deadline_at <= now:
            return None
        outlook = planning_of(
            self._store,
            self._config,
            job,
            now,
            SharedBudgets(self._store, self._config, lambda: now).left,
            down=down_for(standstill.servers),
        ).outlook()
        return None if outlook is None else outlook.chance

    def _queue_alert(self, alert: Alert, now: datetime) -> None:
        for channel in self._channels:
            key = f"{alert.key}|{channel.name}"
            self._store.alerts.add(AlertRecord(key, now, alert.kind, alert.job.id, alert.message, alert.action))
        # Last, so that a recorded alert has messages for all its channels.
        if self._store.alerts.add(
            AlertRecord(alert.key, now, alert.kind, alert.job.id, alert.message, alert.action, now)
        ):
            told = f"{alert.kind}: {alert.message}; {alert.action}"
            self._store.jobs.note(alert.job.id, EventKind.ALERT, told, now, code=alert.code)
            log.warning("%s: %s", alert.job.id, told)

    def _queue_notice(self, notice: Notice, home: str, now: datetime) -> None:
        for channel in self._channels:
            key = f"{notice.key}:{home}|{channel.name}"
            self._store.alerts.add(AlertRecord(key, now, notice.kind, None, notice.message, notice.action, home=home))
        told = AlertRecord(f"{notice.key}:{home}", now, notice.kind, None, notice.message, notice.action, now, home)
        if self._store.alerts.add(told):
            log.warning("%s: %s; %s", notice.kind, notice.message, notice.action)

    def _send(self, home: str, now: datetime) -> None:
        by_name = {channel.name: channel for channel in self._channels}
        for told in self._store.alerts.unsent(home, now - KEPT):
            channel = by_name.get(told.key.rpartition("|")[2])
            at, _ = self._again.get(told.key, (now, 0.0))
            if channel is None or now < at:
                continue
            with _errors_logged(told.key):
                self._send_one(told, channel, now)

    def _send_one(self, told: AlertRecord, channel: Channel, now: datetime) -> None:
        job = None if told.job_id is None else self._store.jobs.find(told.job_id)
        if job is None and told.job_id is not None:
            return
        try:
            channel.send(self._message(told, job, now))
        except OrchError as error:
            self._put_off(told, error.message, now)
        except Exception as error:
            self._put_off(told, f"{type(error).__name__}: {error}", now)
            raise
        else:
            self._again.pop(told.key, None)
            self._store.alerts.sent(told.key, now)

    def _put_off(self, told: AlertRecord, why: str, now: datetime) -> None:
        _, pause = self._again.get(told.key, (now, 0.0))
        if not pause:
            what = REPORT if told.kind == REPORT else f"{told.kind} alert"
            reason = f"the {what} was not accepted and is retried for a day: {why}"
            if told.job_id is not None:
                self._store.jobs.note(told.job_id, EventKind.UNDELIVERED, reason, now)
            log.warning("%s: %s", told.job_id or told.key, reason)
        pause = min(HOUR, max(MINUTE, 2 * pause))
        self._again[told.key] = now + timedelta(seconds=pause), pause

    def _message(self, told: AlertRecord, job: Job | None, now: datetime) -> Message:
        from orchestrator.daemon.channels import Message

        if told.kind == REPORT and job is not None:
            return self._report(job, now)
        whose = "orch"
        if job is not None:
            whose = f"{job.name}, {night_title(job, self._store.schedules.run_of(job.id))}"
        of = f"Home {self._home.root}" if job is None else f"Job {job.id}"
        what = f"{whose}: {told.kind} alert"
        subject = f"{what}: {shortened(told.message, MOST_SUBJECT)}"
        brief = f"{told.message}\nAction taken: {told.action}\n{of}, {moment_words(told.at)}"
        # Two alerts in one second are two messages.
        mark = sha256(told.key.rpartition("|")[0].encode()).hexdigest()[:6]
        name = f"alert-{told.at:%Y%m%d-%H%M%S}-{told.kind}-{'home' if job is None else job.id}-{mark}"
        return Message(name, subject, brief, f"# {what}\n\n{brief}\n", told.at)

    def _report(self, job: Job, now: datetime) -> Message:
        from orchestrator.daemon.channels import Message
        from orchestrator.reports.night_formats import headline, markdown, page, subject_of
        from orchestrator.reports.night_reader import night_report
        from orchestrator.reports.status import lines

        report = night_report(self._store, self._home, None, lines(self._store, [job], now, _nothing_runs), now)
        needs = "".join(f"\n• {need}" for _, need in report.needs)
        day = night_of(job.created_at).isoformat()
        return Message(
            name=f"night-{day}-{job.id}",
            subject=subject_of(report),
            brief=headline(report) + needs,
            text=markdown(report),
            at=now,
            page=page(report),
        )


def _nothing_runs(shard: Shard) -> Decimal:
    """Return zero: all costs of an ended job are booked."""
    return Decimal(0)


@contextmanager
def _errors_logged(what: str) -> Iterator[None]:
    try:
        yield
    except OrchError as error:
        log.warning("%s could not be monitored: %s", what, error)
    except Exception:
        log.exception("%s could not be monitored", what)


def trouble_at(name: str, health: Mapping[str, Any]) -> Trouble | None:
    """Return the trouble of our own server if it has work and no upstream answers, by its health report."""
    if (first := lost(health)) is None:
        return None
    seconds = float(first["problem_seconds"])
    return Trouble(f"{name}:{first['url']}", f"{name}: {first['url']}: {first['problem']}", seconds)


def problem_code(error: OrchError) -> str:
    word = (error.code or error.status) if isinstance(error, BackendRefused) else None
    return error.kind if word is None else f"{error.kind}:{word}"
