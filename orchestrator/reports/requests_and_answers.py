"""The request and answer of a single row, by document and task."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.model import FinishedRow, Job, JobId, Price
from orchestrator.core.near_names import meant
from orchestrator.pipeline.finish.confidences import merging_checks
from orchestrator.pipeline.finish.merge import ResultLines
from orchestrator.pipeline.selection import names_document, nearest
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.policy.grounding import GroundedQuote, read_quotes
from orchestrator.policy.merged_rows import merged_row
from orchestrator.policy.model_names import with_model
from orchestrator.policy.request_bodies import messages_of
from orchestrator.policy.requests import custom_id
from orchestrator.policy.sent_text import TextAt
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store
from orchestrator.store.rows_by_document import FoundRow

SEVERAL = 5
MOST_NAMES = 20_000
"""Maximum number of document names to search for a similar name."""


class Exchange(Struct, frozen=True):
    """A row with its request line and its result line. Each line is None if it is missing, or if its file is gone.

    `merged` is the row as `orch fetch` writes it. `gone` names the missing files. `text_at` is the position of the
    document's text in the request, if answers quote the text. `price` is the booked price of the answer, if this job
    sent the row itself.
    """

    row: FinishedRow
    request: bytes | None
    result: bytes | None
    merged: dict[str, Any]
    gone: tuple[str, ...] = ()
    text_at: TextAt | None = None
    price: Price | None = None

    @property
    def quotes(self) -> tuple[GroundedQuote, ...]:
        """Quotes in the answer, with their places in the document's text."""
        return () if self.row.quotes is None else read_quotes(self.row.quotes)

    @property
    def body(self) -> dict[str, Any]:
        """Body of the request; empty if there is no request."""
        return {} if self.request is None else dict(msgspec.json.decode(self.request)["body"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Messages of the request. Works for every endpoint."""
        return messages_of(self.body)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        price = self.price
        told = price and {"source": price.source, "estimated": price.estimated, "unpriced": price.unpriced}
        return {**self.merged, "request": self.body or None, "price": told, "gone": list(self.gone)}


def exchanges(store: Store, home: Home, job: Job, document: str, task: str | None) -> list[Exchange]:
    """Return a document's rows, or only the rows of one `task`, in input order.

    Raises UsageError if the job has no such document or task, or if several documents match.
    """
    name, rows = document, _rows(store, job, document)
    if not rows:
        name = _document(store, job, document)
        rows = _rows(store, job, name) or store.rows_by_document.rows(job.id, name)
    known = list(dict.fromkeys(found.row.task for found in rows))
    wanted = [found for found in rows if task in (None, found.row.task)]
    if not wanted:
        raise UsageError(
            f"--task {task}: was not asked of the document {name}",
            hint=meant(task or "", known) or f"known: {', '.join(known) or 'none'}",
        )
    checks = merging_checks(store, home, job)
    with closing(ResultLines(home.results)) as lines:
        return [_exchange(store, home, job, found, lines, checks.get(found.row.task)) for found in wanted]


def exchange_at(store: Store, home: Home, job: Job, seq: int) -> Exchange | None:
    """Return the row with this sequence number in the job, or None."""
    found = store.rows_by_document.at(job.id, seq)
    if found is None:
        return None
    check = merging_checks(store, home, job).get(found.row.task)
    with closing(ResultLines(home.results)) as lines:
        return _exchange(store, home, job, found, lines, check)


def _rows(store: Store, job: Job, document: str) -> list[FoundRow]:
    spec = spec_of(job)
    ids = [document] if spec is None else [custom_id(document, task.id) for task in spec.tasks]
    return store.rows_by_document.near(job.id, document, ids)


def _document(store: Store, job: Job, wanted: str) -> str:
    if store.rows_by_document.has_document(job.id, wanted):
        return wanted
    near = store.rows_by_document.documents(job.id, lambda name: names_document(wanted, name), SEVERAL + 1)
    if len(near) == 1:
        return near[0]
    if near:
        told = ", ".join(near[:SEVERAL]) + (", …" if len(near) > SEVERAL else "")
        raise UsageError(f"{wanted!r} matches several documents: {told}", hint="write more of its name")
    names = store.rows_by_document.documents(job.id, lambda name: True, MOST_NAMES)
    like = nearest(wanted, names)
    hint = f"did you mean {' or '.join(like)}?" if like else "`orch fetch` and `orch report night` name its documents"
    raise UsageError(f"job {job.id} has no document {wanted!r}", hint=hint)


def _exchange(
    store: Store, home: Home, job: Job, found: FoundRow, lines: ResultLines, check: AnswerCheck | None
) -> Exchange:
    row, gone = found.row, list[str]()
    text_at = None
    try:
        request, text_at = _request(store, home, job.id, found)
    except StorageError as error:
        request = None
        gone.append(error.message)
    try:
        result = lines.read(row)
    except StorageError as error:
        result = None
        gone.append(error.message)
    try:
        merged = msgspec.json.decode(merged_row(row, result, check))
    except RecursionError:
        gone.append("the answer is nested too deeply to be read; --raw shows it as received")
        merged = msgspec.json.decode(merged_row(row, None, None))
    is_asked_here = row.result is not None and row.carried_from is None
    price = store.ledger.of_answer(row.result[0], row.seq) if row.result is not None and is_asked_here else None
    return Exchange(row, request, result, merged, tuple(gone), text_at, price)


def _request(store: Store, home: Home, job_id: JobId, found: FoundRow) -> tuple[bytes | None, TextAt | None]:
    """Return a row's request line, with the model name sent to its backend, and its `text_at`.

    A row that was carried over unread has no request line in its own run. Its line is in the run that sent it.
    """
    sent_model, origin = found.sent_model, found.row.carried_from
    seen = {job_id}
    while not found.request.length and origin is not None and origin not in seen:
        seen.add(job_id := JobId(origin))
        earlier = store.rows_by_document.row(job_id, found.row.custom_id)
        if earlier is None:
            return None, None
        found, origin = earlier, earlier.row.carried_from
    if not found.request.length:
        return None, None
    path = home.requests(job_id)
    try:
        with path.open("rb") as file:
            file.seek(found.request.offset)
            line = file.read(found.request.length)
    except OSError as error:
        raise StorageError(f"the request file {path} cannot be read: {error.strerror}") from error
    text_at = None if found.text_at is None else TextAt.read(found.text_at)
    return (line if sent_model is None else with_model(line, sent_model)), text_at
