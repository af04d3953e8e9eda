"""Operations on one database. Importing this module imports no database library."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.store.alerts import AlertRecords
    from orchestrator.store.awaited_rows import AwaitedRows
    from orchestrator.store.canary import CanaryRows
    from orchestrator.store.comparisons import Comparisons
    from orchestrator.store.daemon_fence import DaemonFence, DaemonFences
    from orchestrator.store.earlier_answers import Known
    from orchestrator.store.engines import EngineHolds, MeasuredRates
    from orchestrator.store.escalations import Escalations
    from orchestrator.store.failures import Failures
    from orchestrator.store.forecasts import Forecasts, Observations
    from orchestrator.store.gc import Removals
    from orchestrator.store.jobs import Jobs
    from orchestrator.store.ledger import Ledger
    from orchestrator.store.limits import LearnedLimits
    from orchestrator.store.lost_rows import LostRows
    from orchestrator.store.outputs import Outputs
    from orchestrator.store.proven_fields import Proofs
    from orchestrator.store.quality import Qualities
    from orchestrator.store.quarantine import Quarantine
    from orchestrator.store.reduce_rows import Stages
    from orchestrator.store.refusal_holds import RefusalHolds
    from orchestrator.store.refused_fields import RefusedFields
    from orchestrator.store.rows import Rows
    from orchestrator.store.rows_by_document import RowsByDocument
    from orchestrator.store.schedules import Schedules
    from orchestrator.store.shards import Shards
    from orchestrator.store.sizes import Sizes
    from orchestrator.store.telemetry import TelemetryRecords


_MODULES = {
    "jobs": "jobs", "rows": "rows", "known": "earlier_answers", "sizes": "sizes", "shards": "shards",
    "ledger": "ledger", "schedules": "schedules", "alerts": "alerts", "awaited": "awaited_rows",
    "canary": "canary", "quality": "quality", "escalations": "escalations", "comparisons": "comparisons",
    "failures": "failures", "engine_holds": "engines", "engine_rates": "engines", "forecasts": "forecasts",
    "removals": "gc", "limits": "limits", "observations": "forecasts", "rows_by_document": "rows_by_document",
    "proofs": "proven_fields", "lost": "lost_rows", "outputs": "outputs", "quarantine": "quarantine",
    "refused_fields": "refused_fields", "holds": "refusal_holds", "stages": "reduce_rows", "telemetry": "telemetry",
    "daemon_fences": "daemon_fence",
}  # fmt: skip


class Store:
    """All operations on one database. Each group is imported at its first use."""

    jobs: Jobs  # a row per job; tags, events, documents
    rows: Rows  # a row per request: identity, state, and the byte range of its result line
    known: Known  # earlier outcomes of requests, other jobs' answers, equal rows
    sizes: Sizes  # amounts of work, and lengths of prompts and answers
    shards: Shards  # a row per batch; moves by compare-and-set
    ledger: Ledger  # a line for each row with a paid answer
    schedules: Schedules  # schedules and their nights
    alerts: AlertRecords  # messages to people
    awaited: AwaitedRows  # rows that await another job's rows
    canary: CanaryRows  # the rows of a job that are sent first and alone
    escalations: Escalations  # rows that are asked again after a bad answer
    comparisons: Comparisons  # two runs side by side
    failures: Failures  # failed rows, and when they began to fail
    engine_holds: EngineHolds  # GPUs that engines have held
    engine_rates: MeasuredRates  # measured throughput of our own engines
    forecasts: Forecasts  # forecasts and their outcomes
    removals: Removals  # database work of gc
    limits: LearnedLimits  # limits and pauses learned from refusals
    observations: Observations  # other inputs of plans: progress of engines, finishing times of jobs
    rows_by_document: RowsByDocument  # rows by document, with the byte ranges of their request lines
    proofs: Proofs  # field sets that models have answered
    lost: LostRows  # rows that were paid for and whose answers are lost
    outputs: Outputs  # outputs written outside the home
    quality: Qualities  # comparisons of answers with known answers
    quarantine: Quarantine  # failures that are not asked again
    refused_fields: RefusedFields  # fields that models have refused
    holds: RefusalHolds  # rows that wait because a backend refuses all of their kind
    stages: Stages  # rows that wait for the answers to their documents' parts
    telemetry: TelemetryRecords  # data for telemetry about jobs and shards
    daemon_fences: DaemonFences  # the right of a home's daemon to write

    def __init__(self, url: str, *, timeout: float = 10.0, fence: DaemonFence | None = None) -> None:
        from orchestrator.store.database import Database

        self._database = Database(url, timeout=timeout, fence=fence)

    def __getattr__(self, name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(name)
        verbs = getattr(import_module(f"orchestrator.store.{_MODULES[name]}"), Store.__annotations__[name])
        setattr(self, name, verbs(self._database))
        return getattr(self, name)

    @property
    def is_shared(self) -> bool:
        """True if other machines may use the same database."""
        return not self._database.is_sqlite

    @property
    def has_written(self) -> bool:
        return self._database.has_written

    def before_naming_files(self, wait: Callable[[], None]) -> None:
        """Set the function that waits until the database may refer to bytes of the home's files."""
        self._database.before_naming_files = wait

    @classmethod
    def open(cls, url: str, *, timeout: float = 10.0, fence: DaemonFence | None = None) -> Store:
        """Open a store and migrate its schema. With a `fence`, older daemons of the home can no longer write.

        Raises StorageError.
        """
        if fence is not None:
            # First without the fence, because transactions of earlier daemons may block any that need it.
            with cls.open(url, timeout=timeout) as store:
                store.daemon_fences.take(fence)
        store = cls(url, timeout=timeout, fence=fence)
        try:
            store._database.open()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
