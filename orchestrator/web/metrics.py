"""/metrics of a home, for Prometheus: jobs, rows, batches, money, deadlines, budgets, forecasts, the daemon's loop.

Scrapes read the store. Labels have the job file's name, and the figures are of its newest run. Job ids as labels
would create new series every night.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from decimal import Decimal

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from orchestrator.core.clock import now
from orchestrator.core.model import Forecast, Job, RequestState
from orchestrator.core.shards import ShardState
from orchestrator.daemon.lock import running_daemon
from orchestrator.daemon.replica.status_file import read_status
from orchestrator.daemon.telemetry import sent
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.policy import schedule_times
from orchestrator.policy.budgets import BudgetStanding
from orchestrator.policy.forecast_trust import calibrate
from orchestrator.policy.night_figures import foreseen
from orchestrator.web.loop_health import LoopHealth
from orchestrator.web.outlook_cache import Outlooks
from orchestrator.web.reader import HomeReader, Readers

CONTENT_TYPE = exposition.CONTENT_TYPE_PLAIN_0_0_4
NEWEST = 200
"""Number of newest jobs to search for each job file's newest run."""
DAY, MONTH = timedelta(days=1), timedelta(days=30)
KEPT_SECONDS = 2.0
Samples = Iterable[tuple[tuple[str, ...], float]]


class HomeMetrics:
    """The text of /metrics. `loop` is set only in a process that serves a daemon's pages."""

    def __init__(
        self, readers: Readers, outlooks: Outlooks, viewers: Callable[[], int], loop: LoopHealth | None
    ) -> None:
        self._readers = readers
        self._outlooks = outlooks
        self._viewers = viewers
        self._loop = loop
        self._lock = threading.Lock()
        self._made_at = 0.0
        self._text = b""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return the text, rendered at most every KEPT_SECONDS."""
        with self._lock:
            if time.monotonic() - self._made_at > KEPT_SECONDS:
                self._text, self._made_at = exposition.generate_latest(self._registry), time.monotonic()
            return self._text

    def describe(self) -> list[Metric]:
        """Return nothing: metrics are known only at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        reader = self._readers()
        jobs = _newest(reader)
        yield from self._daemon(reader)
        yield from self._of_jobs(reader, jobs)
        yield from _batches(reader, [job for job in jobs if job.finished_at is None])
        yield from _money(reader)
        yield from _budgets(reader)
        yield from _forecasts(reader)
        yield from _schedules(reader)
        yield from _telemetry(reader)

    def _daemon(self, reader: HomeReader) -> Iterator[Metric]:
        up = running_daemon(reader.home) is not None
        for name in ("orch_daemon", "orch_engine"):  # the second name is the old one, kept for one release
            yield _gauge(f"{name}_up", "1 while a daemon runs for this home.", (), [((), float(up))])
            if self._loop is not None:
                yield CounterMetricFamily(f"{name}_rounds", "Rounds of the daemon's loop.", value=self._loop.rounds)
                if (silent := self._loop.silent_seconds) is not None:
                    about = "Seconds since a round of the daemon's loop ended."
                    yield _gauge(f"{name}_silent_seconds", about, (), [((), silent)])
        if (status := read_status(reader.home)) is not None:
            about = "The generation in which this home's daemon is the active one of its replica."
            yield _gauge("orch_replica_generation", about, (), [((), float(status.generation))])
            about = "Seconds since the replica was last brought up to date."
            yield _gauge("orch_replica_age_seconds", about, (), [((), status.age)])
        yield _gauge("orch_web_pages_open", "Pages that are kept current.", (), [((), float(self._viewers()))])

    def _of_jobs(self, reader: HomeReader, jobs: list[Job]) -> Iterator[Metric]:
        lines = reader.lines_of(reader.store, jobs)
        open_states = Counter(str(line.state) for line in lines if not line.state.is_final)
        about = "Jobs that are not over, by state."
        yield _gauge("orch_jobs_open", about, ("state",), (((state,), n) for state, n in open_states.items()))
        about = "Rows of each job file's newest run, by outcome."
        rows = (
            ((line.job.name, state.value), float(getattr(line.counts, state.value)))
            for line in lines
            for state in RequestState
        )
        yield _gauge("orch_job_rows", about, ("job", "outcome"), rows)
        about = "New failures of each job file's newest run: neither known from an earlier run nor acknowledged."
        yield _gauge("orch_job_new_failures", about, ("job",), (((one.job.name,), one.failing.new) for one in lines))
        about = "1 for the state of each job file's newest run."
        yield _gauge(
            "orch_job_state", about, ("job", "state"), (((one.job.name, str(one.state)), 1.0) for one in lines)
        )
        about = "Cost of each job file's newest run so far, in dollars."
        yield _gauge("orch_job_cost_dollars", about, ("job",), (((one.job.name,), float(one.cost)) for one in lines))
        yield from self._foreseen(reader, jobs)

    def _foreseen(self, reader: HomeReader, jobs: list[Job]) -> Iterator[Metric]:
        due = [(job, job.deadline_at) for job in jobs if job.deadline_at is not None]
        about = "When each job file's newest run is due, in Unix time."
        stamps = (((job.name,), deadline.timestamp()) for job, deadline in due)
        yield _gauge("orch_job_deadline_timestamp_seconds", about, ("job",), stamps)
        about = "By how much that run finished before its deadline, or, below zero, after it."
        spare = (
            ((job.name,), (deadline - job.finished_at).total_seconds()) for job, deadline in due if job.finished_at
        )
        yield _gauge("orch_job_deadline_spare_seconds", about, ("job",), spare)
        told = [(job, self._outlooks.told(reader, job).get("outlook.chance")) for job, _ in due]
        about = "Chance that an open run keeps its deadline."
        chances = (((job.name,), float(chance)) for job, chance in told if chance is not None)
        yield _gauge("orch_job_deadline_chance", about, ("job",), chances)
        oldest = min((job.created_at for job in jobs), default=now())
        of_job: dict[str, list[Forecast]] = {}
        for one in reader.store.forecasts.since(oldest):
            of_job.setdefault(one.job_id, []).append(one)
        found = ((job.name, foreseen(of_job.get(job.id, []))) for job in jobs)
        samples = (
            ((name, quantile), float(cost))
            for name, costs in found
            if costs is not None
            for quantile, cost in zip(("0.5", "0.95"), costs, strict=True)
        )
        about = "Planned cost of each job file's newest run, in dollars."
        yield _gauge("orch_job_foreseen_dollars", about, ("job", "quantile"), samples)


def _newest(reader: HomeReader) -> list[Job]:
    """Return each job file's newest run that covers the whole file, at most one run per job name."""
    found: dict[str, Job] = {}
    names: set[str] = set()
    for job in reader.store.jobs.newest(NEWEST):
        if not job.is_limited and job.series not in found and job.name not in names:
            found[job.series] = job
            names.add(job.name)
    return list(found.values())


def _batches(reader: HomeReader, jobs: list[Job]) -> Iterator[Metric]:
    shards = [shard for job in jobs for shard in reader.store.shards.of_job(job.id)]
    states = Counter((shard.backend, str(shard.state)) for shard in shards)
    about = "Batches of open jobs, by backend and state."
    yield _gauge("orch_batches", about, ("backend", "state"), ((key, float(n)) for key, n in states.items()))
    held = Counter(shard.backend for shard in shards if shard.held and not shard.state.is_final)
    about = "Batches that wait for something, by backend."
    yield _gauge("orch_batches_held", about, ("backend",), (((name,), float(n)) for name, n in held.items()))
    rows = Counter[str]()
    for shard in shards:
        if shard.state is ShardState.SUBMITTED:
            rows[shard.backend] += shard.rows - shard.provider_completed - shard.provider_failed
    about = "Rows at each backend that have no answer yet."
    yield _gauge("orch_backend_open_rows", about, ("backend",), (((name,), float(n)) for name, n in rows.items()))


def _money(reader: HomeReader) -> Iterator[Metric]:
    spent = reader.store.ledger.by_tier(now() - DAY)
    about = "Dollars booked in the last 24 hours, by backend and service tier (empty: not stated)."
    samples = (((backend, tier), float(cost)) for (backend, tier), (cost, _) in spent.items())
    yield _gauge("orch_spent_24h_dollars", about, ("backend", "tier"), samples)
    about = "Dollars booked in the last 24 hours for sends without an answer, which may not be billed."
    samples = (((backend, tier), float(uncertain)) for (backend, tier), (_, uncertain) in spent.items())
    yield _gauge("orch_uncertain_24h_dollars", about, ("backend", "tier"), samples)


def _budgets(reader: HomeReader) -> Iterator[Metric]:
    settings = reader.readable
    standings = [] if settings is None else SharedBudgets(reader.store, settings, now).standings()
    figures: tuple[tuple[str, str, Callable[[BudgetStanding], Decimal]], ...] = (
        ("amount", "Dollars that a budget allows in its period.", lambda one: one.budget.amount),
        ("spent", "Dollars of a budget that are spent.", lambda one: one.spent),
        ("left", "Dollars of a budget that are neither spent nor in flight.", lambda one: one.left),
    )
    for name, about, value in figures:
        samples = (((one.budget.name,), float(value(one))) for one in standings)
        yield _gauge(f"orch_budget_{name}_dollars", about, ("budget",), samples)


def _forecasts(reader: HomeReader) -> Iterator[Metric]:
    known = [one for one in calibrate(reader.store.forecasts.since(now() - MONTH)) if one.ratio is not None]
    about = "The median of actual value divided by forecast p50, of 30 days (1: forecasts hold)."
    samples = (((one.kind, one.backend, one.model, one.task), float(one.ratio or 0)) for one in known)
    yield _gauge("orch_forecast_ratio", about, ("kind", "backend", "model", "task"), samples)


def _schedules(reader: HomeReader) -> Iterator[Metric]:
    schedules, at = reader.store.schedules.all(), now()
    due = ((one.name, schedule_times.next_due(one, at)) for one in schedules if one.paused_at is None)
    about = "When a schedule runs next, in Unix time."
    samples = (((name,), following.at.timestamp()) for name, following in due if following is not None)
    yield _gauge("orch_schedule_next_timestamp_seconds", about, ("schedule",), samples)
    last = {night.schedule_id: night for night in reader.store.schedules.nights(None)}
    about = "1 for the state of each schedule's last night."
    states = (((one.name, str(last[one.id].state)), 1.0) for one in schedules if one.id in last)
    yield _gauge("orch_schedule_last_night", about, ("schedule", "state"), states)


def _telemetry(reader: HomeReader) -> Iterator[Metric]:
    log = sent.read(reader.home)
    about = "Spans that the OpenTelemetry receiver accepted, and spans that were dropped."
    family = CounterMetricFamily("orch_telemetry_spans", about, labels=("result",))
    for result, number in (("sent", log.sent), ("dropped", log.dropped)) if log is not None else ():
        family.add_metric((result,), number)
    yield family
    failing = log is not None and log.failing is not None
    yield _gauge("orch_telemetry_failing", "1 while the receiver accepts nothing.", (), [((), float(failing))])


def _gauge(name: str, about: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
