"""What checking answers needs of the store: the rows that go first, and how answers compare with known ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import delete, func, insert, select, update

from orchestrator.core.model import JobId, RequestState
from orchestrator.policy import canary
from orchestrator.store.database import Database
from orchestrator.store.night_tables import quality
from orchestrator.store.tables import IS_CANARY, IS_WAITING, forecasts, requests


@dataclass(frozen=True, slots=True)
class Quality:
    """How a job's answers compare with known ones: `hits` of `fields`, in `rows`.

    `absent` known ones had nothing to be compared with: no row, or one that was never asked. `withheld` is why
    the job's output is not delivered, None where it is.
    """

    hits: int
    fields: int
    rows: int
    absent: int
    withheld: str | None

    @property
    def share(self) -> float | None:
        """The share of the fields that are as expected; None where there is none."""
        return self.hits / self.fields if self.fields else None


class Checked:
    """Verbs on the canary's rows, and on the quality of jobs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def mark_canary(self, job_id: JobId, wanted: int) -> int:
        """Choose so many of the rows that wait to go first, spread over tasks and lengths; how many.

        0 where no more wait than that: there would be none to follow.
        """
        c = requests.c
        waiting = (c.job_id == job_id, IS_WAITING)
        with self._db.write() as tx:
            rows = tx.scalar(select(func.count()).where(*waiting)) or 0
            if rows <= wanted:
                return 0
            nth = func.row_number().over(order_by=(c.task, c.length, c.seq)).label("nth")
            ordered = select(c.seq, nth).where(*waiting).subquery()
            query = select(ordered.c.seq).where(ordered.c.nth.in_(canary.places(rows, wanted)))
            chosen = update(requests).where(c.job_id == job_id, c.seq.in_(list(tx.scalars(query))))
            return tx.execute(chosen.values(canary=True)).rowcount

    def canary(self, job_id: JobId) -> tuple[int, int, Counter[str]] | None:
        """The rows that go first: how many are still open, how many there are, how many failed by code.

        None where no row of the job goes first, or the others follow already.
        """
        c = requests.c
        # Counted here: grouped by state they would be found by the index of states, among all rows.
        query = select(c.state, c.error_code).where(c.job_id == job_id, IS_CANARY)
        with self._db.read() as tx:
            found = Counter((state, code or "error") for state, code in tx.execute(query))
        if not found:
            return None
        still = sum(rows for (state, _), rows in found.items() if state == RequestState.PENDING)
        failed = Counter({code: rows for (state, code), rows in found.items() if state == RequestState.FAILED})
        return still, found.total(), failed

    def foreseen(self, job_id: JobId) -> Decimal | None:
        """What the rows that go first were to cost, in dollars; None where nothing says so."""
        c = forecasts.c
        with self._db.read() as tx:
            found = tx.scalar(select(c.p50).where(c.job_id == job_id, c.kind == canary.KIND))
        return None if found is None else Decimal(str(found))

    def all_follow(self, job_id: JobId) -> None:
        """From now on no row goes before the others."""
        with self._db.write() as tx:
            tx.execute(update(requests).where(requests.c.job_id == job_id, IS_CANARY).values(canary=None))

    def note_quality(self, job_id: JobId, found: Quality, now: datetime) -> None:
        """Keep how a job's answers compare with known ones, in place of what was kept before."""
        facts = {
            "hits": found.hits, "fields": found.fields, "rows": found.rows, "absent": found.absent,
            "withheld": found.withheld,
        }  # fmt: skip
        with self._db.write() as tx:
            tx.execute(delete(quality).where(quality.c.job_id == job_id))
            tx.execute(insert(quality).values(job_id=job_id, at=now, **facts))

    def quality(self, job_id: JobId) -> Quality | None:
        """How a job's answers compare with known ones; None where it has none, or is not at its end."""
        c = quality.c
        with self._db.read() as tx:
            row = tx.execute(select(c.hits, c.fields, c.rows, c.absent, c.withheld).where(c.job_id == job_id)).first()
        return None if row is None else Quality(*row)
