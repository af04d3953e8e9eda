"""All verbs on one database; rarely used ones are imported on use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from orchestrator.store.database import Database
from orchestrator.store.earlier_answers import Known
from orchestrator.store.jobs import Jobs
from orchestrator.store.ledger import Ledger
from orchestrator.store.rows import Rows
from orchestrator.store.schedules import Schedules
from orchestrator.store.shards import Shards
from orchestrator.store.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.store.alerts import AlertRecords
    from orchestrator.store.awaited_rows import AwaitedRows
    from orchestrator.store.comparisons import Comparisons
    from orchestrator.store.daemon_fence import DaemonFence, DaemonFences
    from orchestrator.store.engines import EngineHolds, MeasuredRates
    from orchestrator.store.escalations import Escalations
    from orchestrator.store.failures import Failures
    from orchestrator.store.forecasts import Forecasts, Observations
    from orchestrator.store.gc import Removals
    from orchestrator.store.limits import LearnedLimits
    from orchestrator.store.lookups import Lookups
    from orchestrator.store.lost_rows import LostRows
    from orchestrator.store.outputs import Outputs
    from orchestrator.store.proofs import Proofs
    from orchestrator.store.quality import Checked
    from orchestrator.store.quarantine import Quarantine
    from orchestrator.store.reduce_rows import Stages
    from orchestrator.store.refusal_holds import RefusalHolds
    from orchestrator.store.refused_fields import RefusedFields
    from orchestrator.store.traces import Traces


class Store:
    """All verbs on one database."""

    def __init__(self, url: str, *, timeout: float = 10.0, fence: DaemonFence | None = None) -> None:
        self._database = Database(url, timeout=timeout, fence=fence)
        self.jobs = Jobs(self._database)
        self.rows = Rows(self._database)
        self.known = Known(self._database)
        self.sizes = Sizes(self._database)
        self.shards = Shards(self._database)
        self.ledger = Ledger(self._database)
        self.schedules = Schedules(self._database)

    # `orch status` needs only these; the rest is imported on use.

    @cached_property
    def alerts(self) -> AlertRecords:
        """Messages to people."""
        from orchestrator.store.alerts import AlertRecords

        return AlertRecords(self._database)

    @cached_property
    def awaited(self) -> AwaitedRows:
        """Rows that await another job's rows."""
        from orchestrator.store.awaited_rows import AwaitedRows

        return AwaitedRows(self._database)

    @cached_property
    def checked(self) -> Checked:
        """Canary rows and known answers."""
        from orchestrator.store.quality import Checked

        return Checked(self._database)

    @cached_property
    def escalations(self) -> Escalations:
        """Answers that are re-asked."""
        from orchestrator.store.escalations import Escalations

        return Escalations(self._database)

    @cached_property
    def comparisons(self) -> Comparisons:
        """Two runs side by side."""
        from orchestrator.store.comparisons import Comparisons

        return Comparisons(self._database)

    @cached_property
    def failures(self) -> Failures:
        """Failed rows, and since when they fail."""
        from orchestrator.store.failures import Failures

        return Failures(self._database)

    @cached_property
    def engine_holds(self) -> EngineHolds:
        """GPUs that engines have held."""
        from orchestrator.store.engines import EngineHolds

        return EngineHolds(self._database)

    @cached_property
    def engine_rates(self) -> MeasuredRates:
        """Measured throughput of our own engines."""
        from orchestrator.store.engines import MeasuredRates

        return MeasuredRates(self._database)

    @cached_property
    def forecasts(self) -> Forecasts:
        """Forecasts and actual results."""
        from orchestrator.store.forecasts import Forecasts

        return Forecasts(self._database)

    @cached_property
    def removals(self) -> Removals:
        """Database work of gc."""
        from orchestrator.store.gc import Removals

        return Removals(self._database)

    @cached_property
    def limits(self) -> LearnedLimits:
        """Lessons from refusals."""
        from orchestrator.store.limits import LearnedLimits

        return LearnedLimits(self._database)

    @cached_property
    def observations(self) -> Observations:
        """Inputs of plans besides shards."""
        from orchestrator.store.forecasts import Observations

        return Observations(self._database)

    @cached_property
    def lookups(self) -> Lookups:
        """Single rows."""
        from orchestrator.store.lookups import Lookups

        return Lookups(self._database)

    @cached_property
    def proofs(self) -> Proofs:
        """Sets of fields that models have answered."""
        from orchestrator.store.proofs import Proofs

        return Proofs(self._database)

    @cached_property
    def lost(self) -> LostRows:
        """Rows that were paid for and whose answers are lost."""
        from orchestrator.store.lost_rows import LostRows

        return LostRows(self._database)

    @cached_property
    def outputs(self) -> Outputs:
        """Outputs written outside the home."""
        from orchestrator.store.outputs import Outputs

        return Outputs(self._database)

    @cached_property
    def quarantine(self) -> Quarantine:
        """Failures that are not asked again."""
        from orchestrator.store.quarantine import Quarantine

        return Quarantine(self._database)

    @cached_property
    def refused_fields(self) -> RefusedFields:
        """Fields that models have refused."""
        from orchestrator.store.refused_fields import RefusedFields

        return RefusedFields(self._database)

    @cached_property
    def holds(self) -> RefusalHolds:
        """Rows that wait because a backend refuses all of their kind."""
        from orchestrator.store.refusal_holds import RefusalHolds

        return RefusalHolds(self._database)

    @cached_property
    def stages(self) -> Stages:
        """Rows that wait for the answers to their documents' parts."""
        from orchestrator.store.reduce_rows import Stages

        return Stages(self._database)

    @cached_property
    def traces(self) -> Traces:
        """Telemetry of jobs and shards."""
        from orchestrator.store.traces import Traces

        return Traces(self._database)

    @cached_property
    def daemon_fences(self) -> DaemonFences:
        """The right of a home's daemon to write."""
        from orchestrator.store.daemon_fence import DaemonFences

        return DaemonFences(self._database)

    @property
    def is_shared(self) -> bool:
        """True if other machines reach the same database."""
        return not self._database.is_sqlite

    @property
    def has_written(self) -> bool:
        """True if this store has written anything."""
        return self._database.has_written

    def before_naming_files(self, wait: Callable[[], None]) -> None:
        """Set a function that returns once bytes of the home's files are safe to be referred to."""
        self._database.before_naming_files = wait

    @classmethod
    def open(cls, url: str, *, timeout: float = 10.0, fence: DaemonFence | None = None) -> Store:
        """Open a store and migrate its schema. With a `fence`, older daemons of the home cannot write any more.

        Raises StorageError.
        """
        if fence is not None:
            # Without the fence at first: leftovers of earlier daemons may block whatever needs it.
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
        """Close every connection."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
