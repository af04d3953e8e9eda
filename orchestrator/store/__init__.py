"""Storage of orch's state: every query as a domain verb, with the same code for SQLite and Postgres.

  jobs        a row for each job; tags, events, documents
  rows        a row for each request: identity, state, and the place of its result line
  known       earlier outcomes of requests, other jobs' answers, equal rows
  sizes       amounts of work in rows, in tokens
  shards      a row for each batch; moves by compare-and-set
  ledger      a line for every row with a paid answer
  limits      limits and pauses learned from refusals
  engine_holds  periods in which engines held GPUs
  daemon_fences  the right of a home's daemon to write
  engine_rates  measured throughput of our own engines
  forecasts   forecasts and actual results
  observations  other inputs of plans: progress of engines, finishing times of jobs
  failures    age of failures, and acknowledgements by people
  quarantine  failures that are not asked again
  checked     canary rows, and comparisons of answers with known ones
  comparisons two runs side by side
  alerts      messages to people, sent or unsent
  outputs     files and tables that orch wrote outside its home
  lookups     rows by document, with the places of their request lines
  stages      (reduce_rows) rows that ask about the answers to a document's parts
  removals    database work of gc: deletion of jobs, copies of the database
  schedules   schedules and their nights

No connection, row or driver error leaves this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.store.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    # Imported on use: `glance` needs neither it nor the database library.
    if name != "Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.store.store import Store

    return Store
