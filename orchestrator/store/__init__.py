"""The orchestrator's memory: every query as a domain verb, with the same code for SQLite and Postgres.

  jobs        a row for each job; tags, events, documents seen
  rows        a row for each request: identity, state, and the place of its result line
  known       what is known about requests before they are asked
  sizes       how much work rows are
  shards      a row for each batch; moves by compare-and-set
  ledger      what was paid for, row by row
  limits      what backends' refusals have taught
  engine_holds  how long engines have held GPUs
  daemon_fences  which daemon of a home may write
  engine_rates  measured throughput of our own engines
  forecasts   forecasts and actual results
  observations  other inputs of plans: progress of engines, finishing times of jobs
  failures    since when rows fail, and which failures a person has acknowledged
  quarantine  failures that are not asked again
  checked     canary rows, and comparisons of answers with known ones
  comparisons two runs side by side
  alerts      messages to people, sent or unsent
  outputs     what was written outside the home
  lookups     single rows, with the places of their requests
  stages      (reduce_rows) rows that ask about the answers to a document's parts
  removals    the needs of gc: leftovers of jobs, forgetting them, copies of the database
  schedules   job files that run automatically, and their nights

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
