"""Sets of request fields in a job's waiting rows that their model at a backend has never answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job, JobKind
from orchestrator.pipeline.backend_handles import Models, Prices
from orchestrator.pipeline.dialects import LineWriter, line_writer
from orchestrator.policy.dialect import Recipient
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.preflight import fields_of
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import is_of
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store
from orchestrator.store.records import SampleRow

MOST_READ = 10_000
"""Maximum number of rows read from a batch file, where each row may have different fields."""
MOST_ASKED = 10
"""Maximum number of field sets asked at a time. Field sets with the most rows come first."""


class Unproven(Struct, frozen=True):
    """A field set that a model has never answered, with the smallest row that has these fields.

    `model` is the backend's name for the model; `endpoint` is the endpoint to ask.
    """

    row: SampleRow
    fields: str
    model: str
    endpoint: str


def is_wanted(job: Job) -> bool:
    """True unless the job file turns preflights off."""
    spec = spec_of(job)
    return spec is None or spec.preflight


def unproven(
    store: Store,
    home: Home,
    job: Job,
    backend: str,
    recipient: Recipient,
    models: Models,
    now: datetime,
    avoid: tuple[str, ...] = (),
    *,
    canary: bool = False,
    only: Collection[str] | None = None,
) -> list[Unproven]:
    """Return the field sets of a job's waiting rows that their model at a backend has never answered.

    With `only`, only rows of these aliases count.
    """
    kinds = RowKinds(store, home, job, backend, recipient, models, now)
    if job.kind is JobKind.BATCH:
        rows: Iterable[SampleRow] = store.proofs.first_waiting(job.id, avoid, MOST_READ, canary=canary)
    else:
        rows = store.proofs.smallest_waiting(job.id, avoid, canary=canary)
    found: dict[tuple[str, str, str], Unproven] = {}
    for one in kinds.of(row for row in rows if is_of(row.model, only)):
        key = (one.row.endpoint, one.row.model, one.fields)
        known = found.get(key)
        if known is None:
            found[key] = one
            continue
        smaller = min(one, known, key=lambda each: each.row.span.length)
        found[key] = replace(smaller, row=replace(smaller.row, rows=one.row.rows + known.row.rows))
    ranked = sorted(found.values(), key=lambda one: -one.row.rows)
    return [one for one in ranked if not kinds.is_proven(one)][:MOST_ASKED]


class RowKinds:
    """Field sets of rows, in the form in which they are sent to one backend."""

    def __init__(
        self,
        store: Store,
        home: Home,
        job: Job,
        backend: str,
        recipient: Recipient,
        models: Models,
        now: datetime,
    ) -> None:
        self._store = store
        self._home = home
        self._job = job
        self._backend = backend
        self._recipient = recipient
        self._models = models
        self._now = now
        self._proven: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, rows: Iterable[SampleRow], job: Job | None = None) -> Iterator[Unproven]:
        """Yield each row with its field set. Rows whose lines cannot be read are skipped."""
        job = job or self._job
        writers: dict[tuple[str, str], tuple[str, LineWriter]] = {}
        with suppress(OSError), self._home.requests(job.id).open("rb") as source:
            for row in rows:
                if (kind := (row.endpoint, row.model)) not in writers:
                    model = resolve_model(row.model, self._backend, self._models) or row.model
                    writers[kind] = model, self._writer(job, model, row.endpoint)
                model, writer = writers[kind]
                source.seek(row.span.offset)
                with suppress(ValueError):
                    fields = fields_of(writer.line(row.task, source.read(row.span.length)))
                    yield Unproven(row, fields, model, writer.endpoint)

    def _writer(self, job: Job, model: str, endpoint: str) -> LineWriter:
        refused = self._store.refused_fields.of(self._backend, model, endpoint, self._now)
        return line_writer(job, self._recipient, model, endpoint, refused)

    def is_proven(self, one: Unproven) -> bool:
        """True if the model has answered this field set."""
        key = (one.endpoint, one.model)
        if key not in self._proven:
            self._proven[key] = self._store.proofs.answered(self._backend, *key) or self._answered_earlier(one)
        return one.fields in self._proven[key]

    def _answered_earlier(self, one: Unproven) -> frozenset[str]:
        """Return the field sets answered in batches of an older version of orch, which did not record them."""
        found = set[str]()
        for row in self._store.proofs.earlier_answers(self._backend, one.row.endpoint, one.row.model):
            if (job := self._store.jobs.find(row.job_id)) is not None:
                found.update(known.fields for known in self.of([row], job))
        return frozenset(found)


def is_priced(prices: Prices, one: Unproven) -> bool:
    """True if the price of a synchronous answer is known. A row without a known price is never sent first."""
    try:
        prices.synchronous().known(one.model, one.endpoint)
    except UsageError:
        return False
    return True
