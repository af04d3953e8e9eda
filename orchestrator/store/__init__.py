"""The orchestrator's memory: every query of it, as verbs of the domain. SQLite or Postgres, by the same code.

    jobs        one row a submit; tags, events, documents seen
    rows        one row a request: identity, state, and where its result line lies
    known       what is known of requests before they are asked
    sizes       how much work rows are
    shards      one row a batch; moves by compare-and-set
    ledger      what was paid for, row by row
    limits      what backends' refusals have taught
    engine_holds  how long engines have held GPUs
    engine_fences  which engine of a home may write
    engine_rates  what engines of one's own were measured to do
    forecasts   what was forecast, and what came
    observations  what plans are made from, beside shards: progress of engines, how long jobs took to finish
    failures    since when rows fail, and which failures a person has acknowledged
    quarantine  failures that are not asked again
    checked     rows that go first, and how answers compare with known ones
    comparisons two runs side by side
    alerts      what people were told, or are to be told
    outputs     what was written outside the home
    lookups     single rows, with where their requests lie
    stages      (reduce_rows) rows that ask about the answers to a document's parts
    removals    what gc needs: what jobs leave, forgetting them, copies of the database
    schedules   job files that are run by themselves, and their nights

No connection, row or driver error leaves this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.store.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    # Imported when it is used: `glance` has no need of it, nor of the database library.
    if name != "Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orchestrator.store.store import Store

    return Store
