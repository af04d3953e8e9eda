"""Files and objects that orch wrote. A foreign file is overwritten only if the user asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from orchestrator.core.errors import OutputError
from orchestrator.core.model import JobId
from orchestrator.pipeline.finish.outputs import places
from orchestrator.store import Store
from orchestrator.store.records import WrittenOutput

BY_HAND = ""
"""Series of files written with `-o`. These commands do not belong to a job file's runs."""
WRITING = "writing"
"""Mark of a destination while it is written. The mark stays if the writer is killed."""


def is_foreign(store: Store | None, home: str, series: str, place: str | Path) -> bool:
    """True if a destination has content that orch did not write.

    Content written by runs of the same job file is never foreign, even if it has changed since. `home` is the home's
    id, and `series` the job file's id or BY_HAND. Raises OutputError.
    """
    if places.is_empty(place):
        return False
    if store is None:
        return True
    if store.jobs.has_delivered(home, series, str(place)):
        return False
    known = store.outputs.find(home, places.name_of(place))
    if known is None:
        return True
    return known.series != (series or None) and known.mark not in (WRITING, places.mark_of(place))


@contextmanager
def writing(store: Store, home: str, job_id: JobId, place: str | Path, now: Callable[[], datetime]) -> Iterator[None]:
    """Mark a destination as orch's own during a write, so that it is not foreign if the process is killed."""
    store.outputs.note(home, WrittenOutput(places.name_of(place), BY_HAND, job_id, WRITING, now()))
    yield
    remember(store, home, BY_HAND, job_id, place, now())


def remember(store: Store, home: str, series: str, job_id: JobId, place: str | Path, now: datetime) -> None:
    """Record that orch has just written to a destination. `job_id` is "" if no job wrote to it."""
    try:
        mark = places.mark_of(place)
    except OutputError:
        mark = None  # a storage service that permits writing but not reading
    store.outputs.note(home, WrittenOutput(places.name_of(place), series, job_id, mark, now))
