"""SQL for figures of a list of jobs, on SQLite and Postgres. Run by the store, and by `orch status` on sqlite3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from orchestrator.core.counts import MARKED, Counts
from orchestrator.core.fail_on import Failing
from orchestrator.core.model import PICO, JobId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Ask = Callable[[str, Sequence[str]], Iterable[Sequence[Any]]]
"""Runs a statement in one consistent view and returns the rows. `{}` becomes one placeholder per job."""

_STATES = "SELECT job_id, state, count(*) FROM requests WHERE job_id IN ({}) GROUP BY job_id, state"
_MARKED = """\
SELECT job_id, count(CASE WHEN cut THEN 1 END), count(CASE WHEN repaired THEN 1 END),
  count(CASE WHEN odd_end THEN 1 END), count(CASE WHEN unverifiable THEN 1 END)
FROM requests WHERE job_id IN ({}) AND cut IS NOT NULL GROUP BY job_id"""
_SUBMITTED = "SELECT DISTINCT job_id FROM shards WHERE job_id IN ({}) AND state NOT IN ('pending', 'cancelled')"
_FAILING = """\
SELECT r.job_id,
  CASE WHEN a.at IS NOT NULL THEN 'acknowledged' WHEN r.failed_since < j.created_at THEN 'known' ELSE 'new' END
  AS status, count(*), min(r.failed_since)
FROM requests AS r JOIN jobs AS j ON j.id = r.job_id
LEFT JOIN acknowledgements AS a
  ON a.series = j.series AND a.custom_id = r.custom_id AND a.code = r.error_code AND a.since = r.failed_since
WHERE r.job_id IN ({}) AND r.error_code >= '' AND r.state = 'failed'
GROUP BY r.job_id, status"""
_SPENT = "SELECT sum(cost) FROM ledger WHERE job_id IN ({})"


def instant(microseconds: int | None) -> datetime | None:
    """Return a time, stored in microseconds since 1970, as an aware UTC time."""
    return None if microseconds is None else _EPOCH + timedelta(microseconds=int(microseconds))


def counts(ask: Ask, job_ids: Sequence[JobId]) -> dict[JobId, Counts]:
    """Return each job's number of requests by state, and of accepted answers by mark, such as cut or repaired."""
    found: dict[JobId, dict[str, int]] = {job_id: {} for job_id in job_ids}
    for job_id, state, number in ask(_STATES, job_ids):
        found[job_id][state] = number
    for job_id, *numbers in ask(_MARKED, job_ids):
        found[job_id] |= dict(zip(MARKED, numbers, strict=True))
    return {job_id: Counts(**states) for job_id, states in found.items()}


def submitted(ask: Ask, job_ids: Sequence[JobId]) -> frozenset[JobId]:
    """Return the jobs with a batch that was sent, or is about to be."""
    return frozenset(job_id for (job_id,) in ask(_SUBMITTED, job_ids))


def failing(ask: Ask, job_ids: Sequence[JobId]) -> dict[JobId, Failing]:
    found = dict.fromkeys(job_ids, Failing())
    for job_id, status, rows, since in ask(_FAILING, job_ids):
        facts = {status: rows, **({"since": instant(since)} if status == "known" else {})}
        found[job_id] = replace(found[job_id], **facts)
    return found


def spent(ask: Ask, job_id: JobId) -> Decimal:
    """Return the cost of a job so far, in dollars."""
    [(total,)] = ask(_SPENT, [job_id])
    return int(total or 0) * PICO
