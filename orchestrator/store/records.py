"""Records that the store takes and returns, and the table columns of requests. No database library is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.model import FinishedRow, JobId, Outcome, Price, RequestState, Row, Span, Usage, Why
from orchestrator.core.shards import ShardId

COUNTS = (
    "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "cache_write_tokens",
    "cache_write_1h_tokens", "input_audio_tokens", "output_audio_tokens", "input_image_tokens", "output_image_tokens",
    "web_searches",
)  # fmt: skip
"""Columns of an answer's usage, in the order of `Usage`."""
CARRIED = (
    "state", "settled_at", "result_shard", "result_kind", "result_offset", "result_length", "sent_model",
    "answered_by", "upstream", "latency_ms", *COUNTS, "tier", "cut", "repaired", "odd_end", "unverifiable",
    "quotes", "error_code",
    "error_message",
)  # fmt: skip
_SENT_MODEL, _REPAIRED = CARRIED.index("sent_model"), CARRIED.index("repaired")
_LINE = slice(CARRIED.index("result_shard"), CARRIED.index("result_length") + 1)
_MADE = (
    "job_id", "seq", "custom_id", "document", "task", "endpoint", "model", "fingerprint", "prompt_version", "offset",
    "length", "cut_from_tokens", "inputs", "max_output", "trimmed_tokens", "cache_key", "content", "wording", "part",
    "parts", "sent_as", "notes", "text_at", "why", "twin_of", "carried_from", "attempt", "cost",
)  # fmt: skip
ADDED = (*_MADE, *CARRIED)
SETTLED = (*CARRIED, "cost")
BOOKED = (
    "job_id", "seq", "shard_id", "at", "kind", "backend", "model", *COUNTS, "tier", "cost",
    "price_source", "estimated", "unpriced", "listed",
)  # fmt: skip
FINISHED = (
    "seq", "custom_id", "document", "task", "model", "prompt_version", "cut_from_tokens", "state", "attempt",
    "result_shard", "result_kind", "result_offset", "result_length", "answered_by", "upstream", "latency_ms",
    *COUNTS, "tier", "cost",
    "error_code", "error_message", "carried_from", "twin_of", "job_id", "settled_at", "why", "part", "parts",
    "sent_as", "notes", "repaired", "quotes",
)  # fmt: skip
"""Columns whose values `finished` takes, in this order."""
STATES = {state.value: state for state in RequestState}
"""States by column value. Calling `RequestState` takes ten times as long."""
_WHYS = {None: None} | {why.value: why for why in Why}


class Earlier(Struct, frozen=True):
    """Outcome of a request in an earlier run; `facts` are the values of `CARRIED`.

    `job_id` is the job that sent the request. `taken_from` is the answer's backend and model if a job of another file
    sent it, else None. `cut_from_tokens` is the document's length before it was cut. `sent_as` names the document's
    pages sent as pictures, and `notes` says what was not read.
    """

    custom_id: str
    fingerprint: str
    state: RequestState
    error_code: str | None
    job_id: str
    facts: tuple[Any, ...]
    cut_from_tokens: int | None = None
    taken_from: tuple[str, str] | None = None
    sent_as: str | None = None
    notes: str | None = None

    @property
    def answered_as(self) -> str | None:
        """The answering backend's name for the model; None without an answer."""
        name: str | None = self.facts[_SENT_MODEL]
        return name if self.state is RequestState.SUCCEEDED else None

    @property
    def is_read(self) -> bool:
        """False for an answer accepted by an older version, which did not look for JSON in other text."""
        return self.facts[_REPAIRED] is not None or self.state is not RequestState.SUCCEEDED or self.line is None

    @property
    def line(self) -> tuple[ShardId, str, Span] | None:
        """The shard, file kind and byte range of the result line, or None without a line."""
        shard_id, kind, offset, length = self.facts[_LINE]
        return None if shard_id is None or kind is None else (shard_id, kind, Span(offset, length))

    def as_read(self) -> Earlier:
        """Return a copy of the outcome, marked as an answer that needed no repair."""
        return replace(self, facts=(*self.facts[:_REPAIRED], False, *self.facts[_REPAIRED + 1 :]))


class EarlierRow(Struct, frozen=True):
    """Inputs and state of an earlier run's row. An empty `fingerprint` means that the run's files are gone.

    `sent_model` is the answering backend's name for the model.
    """

    fingerprint: str
    content: str | None
    wording: str | None
    prompt_version: str
    model: str
    state: RequestState
    sent_model: str | None


class Settled(Struct, frozen=True):
    """A row's outcome, its `price` (None: nothing is booked), and the `uncertain` cost of attempts without an answer.

    `used` is the token estimate behind the price if the answer states no tokens.
    """

    outcome: Outcome
    price: Price | None
    uncertain: Price | None = None
    used: Usage | None = None


class InShard(Struct, frozen=True):
    """A row of a shard: its identity, its request line's byte range, and the maximum tokens of its answer.

    `text_at`, `part` and `parts` are as in `Row`. `again` counts the requests that showed the model the fault of its
    answer; `first` is then the byte range of the original line.
    """

    seq: int
    custom_id: str
    task: str
    attempt: int
    span: Span
    state: RequestState
    max_output: int | None = None
    again: int = 0
    first: Span | None = None
    text_at: str | None = None
    part: int | None = None
    parts: int | None = None


class OpenRows(Struct, frozen=True):
    """A group of open rows: total `bytes` of their lines, and total `max_output` tokens (None if a row has no limit).

    Waiting rows have no `shard_id`, and avoid the backends in `avoid`.
    """

    endpoint: str
    model: str
    task: str
    prompt_version: str
    avoid: tuple[str, ...]
    shard_id: str | None
    rows: int
    bytes: int
    max_output: int | None


class SeenDocument(Struct, frozen=True):
    """A document as a build found it; `problem` is its error code if it could not be read.

    `stamp` is the file system's description of its file, or None if unreliable. `content` identifies its bytes and
    text. For a row of a table, `file` is the table's key and `place` the row's position in it. The table has its own
    entry, written together with the entries of all its rows.
    """

    key: str
    digest: str
    size: int | None
    problem: str | None
    stamp: str | None = None
    content: str | None = None
    file: str | None = None
    place: int | None = None


class FileMark(Struct, frozen=True):
    """Stored facts about a file: its stamp and content (None for a table), and the `digest` of its bytes.

    `content` is also None if the file could not be read. `seen_at` is when a build last found the file.
    """

    stamp: str | None
    content: str | None
    digest: str
    size: int | None
    seen_at: datetime


class WrittenOutput(Struct, frozen=True):
    """A file or an object as orch last wrote it. `mark` identifies its content; None means unknown."""

    place: str
    series: str
    job_id: JobId
    mark: str | None
    at: datetime


class RowInFlight(Struct, frozen=True):
    """An open row whose shard was sent. `model` is the alias stored in the shard."""

    job_id: JobId
    seq: int
    shard_id: ShardId
    backend: str
    model: str


def awaits(row: RowInFlight) -> tuple[int, str]:
    """Return `twin_of` and `carried_from` for a row that awaits `row`."""
    return place_elsewhere(row.seq), row.job_id


def place_elsewhere(place: Any) -> Any:
    """Convert the `seq` of another job's row to a negative `twin_of`, or back."""
    return -1 - place


class SampleRow(Struct, frozen=True):
    """A row whose request line is an example of the fields that its task sends.

    `span` is the line's byte range. `rows` is the number of the task's rows, or 1 if unknown.
    """

    job_id: JobId
    seq: int
    endpoint: str
    model: str
    task: str
    span: Span
    max_output: int | None = None
    rows: int = 1


class RefusalHold(Struct, frozen=True):
    """A hold on rows of a job that a backend refuses, with the provider's reason.

    `model` is the rows' alias. The backend last refused the rows at `held_at`, and orch may try a single row at
    `probe_at`. `times` is how often the backend refused all rows.
    """

    job_id: JobId
    backend: str
    model: str
    task: str
    code: str
    message: str
    held_at: datetime
    probe_at: datetime
    times: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        return {
            "code": self.code,
            "message": self.message,
            "backend": self.backend,
            "model": self.model,
            "task": self.task,
            "held_at": self.held_at.isoformat(timespec="seconds"),
            "times": self.times,
        }


def added(
    job_id: JobId, row: Row, span: Span, now: datetime, why: Why | None, known: Earlier | None, twin_of: int | None,
    awaits: str | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the values of `ADDED` for a row that carries a `known` outcome over, has failed already, or waits.

    With `awaits`, the row waits for a row of the job with that id.
    """
    made = (
        job_id, row.seq, row.custom_id, row.document, row.task, row.endpoint, row.model, row.fingerprint,
        row.prompt_version, span.offset, span.length, row.cut_from_tokens, row.inputs, row.max_output,
        row.trimmed_tokens, row.cache_key, row.content, row.wording, row.part, row.parts, row.sent_as,
        row.notes, row.text_at, why,
    )  # fmt: skip
    if known is not None:
        message = known.facts[-1:] if row.problem is None else row.problem[1:]
        return (*made, None, known.job_id, 0, _FREE, *known.facts[:-1], *message)
    if row.problem is None:
        return (*made, twin_of, awaits, 0, _FREE, *_WAITS)
    return (*made, twin_of, None, 0, _FREE, RequestState.FAILED, now, *_WAITS[2:-2], *row.problem)


_FREE = Decimal(0)
_WAITS = (
    RequestState.PENDING, *[None] * 9, *[0] * len(COUNTS), *[None] * 8,
)  # fmt: skip


def settled(shard_id: ShardId, row: Settled, now: datetime, model: str | None) -> tuple[Any, ...]:
    outcome, span = row.outcome, row.outcome.span
    return (
        outcome.state, now, shard_id, outcome.kind, span.offset if span else None, span.length if span else None,
        model, outcome.model, outcome.upstream, outcome.latency_ms, *_tokens(outcome.usage), outcome.tier,
        outcome.cut if outcome.is_marked else None, outcome.repaired, outcome.odd_end or None,
        outcome.unverifiable or None, outcome.quotes, outcome.error_code, outcome.error_message,
        row.price.cost if row.price else _FREE,
    )  # fmt: skip


def booked(
    shard_id: ShardId, job_id: JobId, backend: str, row: Settled, kind: str, price: Price, now: datetime
) -> tuple[Any, ...]:
    outcome = row.outcome
    # Only the settled line has tokens, because those of an attempt without an answer are unknown.
    usage = Usage() if kind == "uncertain" else row.used or outcome.usage
    return (
        job_id, outcome.seq, shard_id, now, kind, backend, outcome.model or "", *_tokens(usage), outcome.tier,
        price.cost, price.source, price.estimated, price.unpriced or None, price.listed,
    )  # fmt: skip


_tokens: Callable[[Usage], tuple[int, ...]] = attrgetter(*COUNTS)


def finished(values: Sequence[Any]) -> FinishedRow:
    """Return a row from the values of `FINISHED`, and of `tables.OF_SHARD` if they follow."""
    (
        seq, custom_id, document, task, model, prompt_version, cut_from_tokens, state, attempt, shard, kind, offset,
        length, answered_by, upstream, latency_ms, *counts, tier, cost,
        error_code, error_message, carried_from, twin_of, job_id, settled_at, why, part, parts, sent_as, notes,
        repaired, quotes, backend, batch_id, is_guessed,
    ) = values if len(values) > len(FINISHED) else (*values, None, None, False)  # fmt: skip
    # A twin's outcome comes from a row of its own job.
    is_twin = twin_of is not None and state != RequestState.PENDING
    return FinishedRow(
        seq, custom_id, document, task, model, prompt_version, cut_from_tokens, STATES[state], attempt,
        None if shard is None or kind is None else (shard, kind, Span(offset, length)),
        answered_by, upstream, latency_ms, Usage(*counts), tier, cost,
        error_code, error_message, job_id if is_twin else carried_from, backend, batch_id, settled_at,
        _WHYS[why], part, parts, sent_as, notes, bool(repaired), quotes, bool(is_guessed),
    )  # fmt: skip
