"""The orchestrator's memory: every query of it, as verbs of the domain. SQLite or Postgres, by the same code.

    jobs        one row a submit; tags, events, documents seen
    rows        one row a request: identity, state, and where its result line lies
    shards      one row a batch; moves by compare-and-set
    ledger      what was paid for, row by row
    limits      what backends' refusals have taught
    forecasts   what was foreseen, and what came
    quarantine  failures that are not asked again
    checked     rows that go first, and how answers compare with known ones
    comparisons two runs side by side
    alerts      what people were told, or are to be told
    house       what keeping house needs: what jobs leave, forgetting them, copies of the database
    schedules   job files that are run by themselves, and their nights

No connection, row or driver error leaves this package.
"""

from __future__ import annotations

from orchestrator.store.alerts import Alerts
from orchestrator.store.checked import Checked
from orchestrator.store.climbs import Climbs
from orchestrator.store.comparisons import Comparisons
from orchestrator.store.database import Database
from orchestrator.store.forecasts import Forecasts
from orchestrator.store.house import House
from orchestrator.store.jobs import Jobs
from orchestrator.store.ledger import Ledger
from orchestrator.store.limits import Limits
from orchestrator.store.quarantine import Quarantine
from orchestrator.store.rows import Rows
from orchestrator.store.schedules import Schedules
from orchestrator.store.shards import Shards

__all__ = ["Store"]


class Store:
    """All verbs on one database."""

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        self._database = Database(url, timeout=timeout)
        self.jobs = Jobs(self._database)
        self.rows = Rows(self._database)
        self.climbs = Climbs(self._database)
        self.shards = Shards(self._database)
        self.ledger = Ledger(self._database)
        self.limits = Limits(self._database)
        self.quarantine = Quarantine(self._database)
        self.checked = Checked(self._database)
        self.forecasts = Forecasts(self._database)
        self.comparisons = Comparisons(self._database)
        self.alerts = Alerts(self._database)
        self.house = House(self._database)
        self.schedules = Schedules(self._database)

    @classmethod
    def open(cls, url: str, *, timeout: float = 10.0) -> Store:
        """A store whose schema is current. Raises StorageError."""
        store = cls(url, timeout=timeout)
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
