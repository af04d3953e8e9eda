"""Storage of a job's canary: the rows that are sent first and alone, until their answers are judged."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from sqlalchemy import func, select, update

from orchestrator.core.model import JobId, RequestState
from orchestrator.policy import canary
from orchestrator.store.database import Database
from orchestrator.store.tables import IS_CANARY, IS_WAITING, forecasts, requests


class CanaryRows:
    def __init__(self, database: Database) -> None:
        self._db = database

    def mark(self, job_id: JobId, wanted: int) -> int:
        """Choose `wanted` waiting rows as the canary, spread over tasks and lengths, and return their number.

        Marks no row and returns 0 if at most `wanted` rows wait, because no row would follow the canary.
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

    def state(self, job_id: JobId) -> tuple[int, int, Counter[str]] | None:
        """Return how many rows of the canary are open, how many rows it has, and how many rows failed, by code.

        Returns None if the job has no canary, or if the canary has ended.
        """
        c = requests.c
        # Counted in Python: grouping by state in SQL would use the index of states, which covers all rows.
        query = select(c.state, c.error_code).where(c.job_id == job_id, IS_CANARY)
        with self._db.read() as tx:
            found = Counter((state, code or "error") for state, code in tx.execute(query))
        if not found:
            return None
        still = sum(rows for (state, _), rows in found.items() if state == RequestState.PENDING)
        failed = Counter({code: rows for (state, code), rows in found.items() if state == RequestState.FAILED})
        return still, found.total(), failed

    def foreseen(self, job_id: JobId) -> Decimal | None:
        """Return the forecast cost of the canary in dollars, or None without a forecast."""
        c = forecasts.c
        with self._db.read() as tx:
            found = tx.scalar(select(c.p50).where(c.job_id == job_id, c.kind == canary.KIND))
        return None if found is None else Decimal(str(found))

    def all_follow(self, job_id: JobId) -> None:
        """End the canary, so that all rows may be sent."""
        with self._db.write() as tx:
            tx.execute(update(requests).where(requests.c.job_id == job_id, IS_CANARY).values(canary=None))
