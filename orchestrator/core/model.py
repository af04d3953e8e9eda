"""The domain's terms: states and their transitions, and records that modules share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NewType

import msgspec
from msgspec import Struct

from orchestrator.core.counts import Counts, number_of
from orchestrator.core.errors import OutputFault

JobId = NewType("JobId", str)

NIGHT = "night"
"""Job option with the id of the night that made the job. Until that night has recorded the job, only the night builds
it.
"""
SUPERSEDED_BY = "superseded_by"
"""Job option with the id of the newer job that replaced this job after an edit of its file."""
MAX_TOKENS = 2**31 - 1
"""Largest token count of a request or an answer that every database can store."""
PICO = Decimal(10) ** -12
"""Smallest unit of money, in dollars. Sums stay exact: even a cached token costs at least 2,500 picodollars."""


class RequestState(StrEnum):
    """States of a request. All except `pending` are outcomes, and an outcome never changes."""

    PENDING = "pending"  # no outcome yet: the request waits for a shard, or is in one
    SUCCEEDED = "succeeded"  # its answer arrived and passed its checks
    FAILED = "failed"  # rejected, or its answer failed a check, or its document could not be read
    CANCELLED = "cancelled"  # the user, or the budget, ended the job before the request ran
    EXPIRED = "expired"  # the deadline passed, and the job must not finish late

    @property
    def is_final(self) -> bool:
        """True if the state is an outcome."""
        return self is not RequestState.PENDING


class JobState(StrEnum):
    """States of a job, derived from its rows (see `job_state`) and stored nowhere.

    Callers that know the home's processes may report `STOPPED` for `RUNNING` and `MERGING`.
    """

    WAITING = "waiting"  # the job runs after another job
    BUILDING = "building"  # documents are being read
    QUEUED = "queued"  # built; nothing has been submitted yet
    RUNNING = "running"
    STOPPED = "stopped"  # no daemon runs, and no provider has its batches
    CANCELLING = "cancelling"
    MERGING = "merging"  # every row has an outcome; the result file is not written yet
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"  # the job as a whole could not continue; `error` says why

    @property
    def is_final(self) -> bool:
        """True if nothing more will happen to the job."""
        return self in (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)


class JobKind(StrEnum):
    """Sources of a job."""

    DOCUMENTS = "documents"  # a YAML job file
    BATCH = "batch"  # a ready OpenAI batch file


class Job(Struct, frozen=True):
    """A submitted job. `spec` is the stored job file (empty for a batch file), which `settings.spec_of` reads.

    Times are aware UTC. `ignored` counts the entries of the job's folders that are not documents
    (`documents.ignored`); None for a batch file.
    """

    id: JobId
    home: str
    series: str
    identity: str
    name: str
    kind: JobKind
    source: str
    spec: Mapping[str, Any]
    options: Mapping[str, Any]
    created_at: datetime
    deadline_at: datetime | None = None
    budget: Decimal | None = None
    built_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    cancel_code: str | None = None
    cancel_reason: str | None = None
    finished_at: datetime | None = None
    output_path: str | None = None
    error: str | None = None
    error_code: str | None = None
    ignored: Mapping[str, Any] | None = None

    @property
    def is_undelivered(self) -> bool:
        """True if the job's rows are done and kept, but could not be written where its file wants them."""
        return self.finished_at is not None and self.error_code in set(OutputFault)

    @property
    def ran_to_its_end(self) -> bool:
        """True if the job has finished and was not cancelled. Later runs of its file are compared with this job."""
        return self.finished_at is not None and self.cancel_requested_at is None

    @property
    def is_limited(self) -> bool:
        """True if the job covers only some documents or tasks of its file. Documents and tasks left out do not count
        as removed.
        """
        return self.limited_to is not None

    @property
    def limited_to(self) -> str | None:
        """The job's limits as text; None if the job covers its whole file."""
        return scope_words(self.options)


class CancelCode(StrEnum):
    """Reasons why a job ended early."""

    USER = "user"
    BUDGET = "budget"  # its own, or a shared one
    CANARY = "canary"  # the canary rows came back badly
    SUPERSEDED = "superseded"  # its file was edited, and a newer job took over its work


class JobFault(StrEnum):
    """Reasons why a job as a whole could not continue.

    A job whose rows are done but not delivered has an `OutputFault` instead.
    """

    INPUT = "bad_input"  # its file or its documents are wrong, and a person can correct them
    INTERNAL = "internal_error"  # a defect of orch; the log has the traceback
    FILES = "job_files"  # its own files in the home are gone, or cannot be written
    NO_ROOM = "no_room"  # [retention] leaves no room for its requests, or the disk is full
    AFTER = "after_failed"  # the job that had to run before this job did not succeed
    REFUSED = "refused"  # no plan keeps its deadline or its budget, or no backend may take it


def scope_words(options: Mapping[str, Any]) -> str | None:
    """Describe the limits in a job's options; None if it has no limits."""
    first, only, tasks = (options.get(name) for name in ("limit", "only", "tasks"))
    told = ["the first document" if first == 1 else f"the first {number_of(first, 'document')}"] if first else []
    told += [f"documents {', '.join(only)}"] if only else []
    told += [f"tasks {', '.join(tasks)}"] if tasks else []
    return "; ".join(told) or None


class Why(StrEnum):
    """Reasons why a build sends or skips a row, after a comparison with the job file's last run."""

    NEW = "new"  # the last run did not ask this question about this document
    DOCUMENT = "document changed"  # its text, or the reason why it cannot be read
    PROMPT = "prompt changed"  # the question or the system prompt
    PARAMETERS = "parameters changed"  # schema, limit, temperature, clean-up and the like
    MODEL = "model changed"  # another alias
    READER = "reader changed"  # this version of orch reads documents differently
    FAILED = "failed before"
    UNANSWERED = "no answer held"  # cancelled, expired or open; or the only answer is one that this job may not use
    ASKED = "asked for (--new)"  # nothing changed, but the user wants a new answer
    UNCHANGED = "unchanged"  # an earlier run has the outcome


class Usage(msgspec.Struct, frozen=True):
    """Tokens of an answer, and the web searches that the provider made for the answer.

    `input_tokens` includes `cached_tokens` (read from the provider's cache) and `cache_write_tokens` (written to it).
    `output_tokens` includes `reasoning_tokens`. `cache_write_1h_tokens` are the written tokens that are kept for an
    hour. Audio and image tokens are parts of input and output.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0
    input_image_tokens: int = 0
    output_image_tokens: int = 0
    web_searches: int = 0


class Span(msgspec.Struct, frozen=True):
    """Place of a line: bytes `[offset, offset + length)` of a file, without the newline."""

    offset: int
    length: int


class Row(msgspec.Struct, frozen=True):
    """A request as it is built: its place in the job and its identity.

    `problem` is `(code, message)` if the document could not become a request. The row then fails immediately.
    `inputs` counts the inputs of an embedding row. `max_output` limits the answer, in tokens, if the row has a limit.
    `cache_key` is equal for all requests that can share an answer, None if the row cannot share. `trimmed_tokens`
    estimates the tokens that the clean-up removed from the document. `content` identifies the document's bytes and
    text, None if the document could not be read. `wording` identifies the prompts. `sent_as` names the pages sent as
    pictures, None if all are text. `notes` names unread content of the document. `text_at` is the place of the
    document's text in the request, as `grounding.TextAt` writes it, if answers quote it.

    A long document has `parts`. A row about the parts' answers comes first, then a row for each `part`, from 1.
    """

    seq: int
    custom_id: str
    document: str
    task: str
    endpoint: str
    model: str
    fingerprint: str
    prompt_version: str
    cut_from_tokens: int | None = None
    problem: tuple[str, str] | None = None
    inputs: int = 1
    max_output: int | None = None
    cache_key: str | None = None
    trimmed_tokens: int = 0
    content: str | None = None
    wording: str = ""
    part: int | None = None
    parts: int | None = None
    sent_as: str | None = None
    notes: str | None = None
    text_at: str | None = None


class Forecast(Struct, frozen=True):
    """A forecast made when rows are sent, and its result. `actual` is None until the result is known.

    `kind` is `turnaround` (seconds of a shard), `finish` (seconds of a job), `cost` (dollars of a job), or `output`
    (mean tokens of a task's answer). A fifth kind is `in_time`: the chance that the job keeps its deadline; `actual`
    is 1 if it did. `source` is the origin of the figure. `censored` marks a run that was cut short: its value would
    have been larger.
    """

    job_id: JobId
    kind: str
    backend: str
    model: str
    made_at: datetime
    p50: float
    p95: float
    source: str
    task: str = ""
    shard_id: str = ""
    actual: float | None = None
    known_at: datetime | None = None
    censored: bool = False


class ProgressSample(Struct, frozen=True):
    """Progress of a job at one of our own backends: finished rows, their tokens, and the remaining rows (`left`).

    Rows in back-off between two attempts are not `left`. `series` is the job's file.
    """

    job_id: JobId
    series: str
    backend: str
    at: datetime
    done: int
    left: int
    input_tokens: int = 0
    output_tokens: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a request in one shard, and the place of its result line.

    `kind` is the result file (`output` or `error`), None without a line. `upstream_seconds` is the row's share of the
    upstream's time, from which a local row's cost is computed. `tier` is the service tier that the answer states.
    `uncertain` counts sends without an answer, which may be billed. `status` is the HTTP status of the backend's
    answer to the row, None without an answer. `answer_bytes` is the length of a text if the answer states no tokens.
    `billed` are the billed tokens, None if they equal `usage`. `answered_at` is the answer's stated time in Unix
    seconds, if any. `unpriced` names parts of the answer's use that have no price.

    Four flags mark an accepted answer. `cut`: it ended at `max_tokens`. `repaired`: its JSON was extracted from other
    text. `odd_end`: its finish reason is unknown. `unverifiable`: a quote can be neither proven nor refuted. `quotes`
    are the answer's quotes with their places, as `grounding.Grounding` writes them.
    """

    seq: int
    state: RequestState
    kind: str | None = None
    span: Span | None = None
    usage: Usage = Usage()
    model: str | None = None
    upstream: str | None = None
    latency_ms: int | None = None
    upstream_seconds: float = 0.0
    tier: str | None = None
    uncertain: int = 0
    status: int | None = None
    answer_bytes: int = 0
    cut: bool = False
    repaired: bool = False
    odd_end: bool = False
    unverifiable: bool = False
    quotes: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    billed: Usage | None = None
    unpriced: tuple[str, ...] = ()
    answered_at: float | None = None

    @property
    def is_answer(self) -> bool:
        """True if the backend answered the row with a success, whatever the content."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_marked(self) -> bool:
        """True if the answer has at least one of the four flags."""
        return self.cut or self.repaired or self.odd_end or self.unverifiable


class FinishedRow(msgspec.Struct, frozen=True, gc=False):
    """A finished row, as the merge reads it. `result` is the (shard, kind, span) of its result line, None if the row
    has no line.

    If `is_guessed`, the cost is estimated from the answer's length, since the answer states no tokens.
    """

    seq: int
    custom_id: str
    document: str
    task: str
    model: str
    prompt_version: str
    cut_from_tokens: int | None
    state: RequestState
    attempt: int
    result: tuple[str, str, Span] | None
    answered_by: str | None
    upstream: str | None
    latency_ms: int | None
    usage: Usage
    tier: str | None
    cost: Decimal
    error_code: str | None
    error_message: str | None
    carried_from: str | None
    backend: str | None
    batch_id: str | None
    settled_at: datetime | None = None
    why: Why | None = None
    part: int | None = None
    parts: int | None = None
    sent_as: str | None = None
    notes: str | None = None
    repaired: bool = False
    quotes: str | None = None
    is_guessed: bool = False

    @property
    def attempt_number(self) -> int:
        """Number of the last attempt, from 1; `attempt` counts the earlier attempts."""
        return self.attempt + 1

    @property
    def stage(self) -> str | None:
        """`map` for a part of a long document, `reduce` for the row about its parts, None if undivided."""
        return None if self.parts is None else "reduce" if self.part is None else "map"


class Price(msgspec.Struct, frozen=True):
    """Cost of an answer in US dollars, and the source of that figure.

    If `unpriced`, the answer used something without a known price, so the cost is an estimate too. `listed` is the
    list price of the same tokens outside a batch; None if no price list has the model.
    """

    cost: Decimal
    source: str
    estimated: bool = False
    unpriced: bool = False
    listed: Decimal | None = None


REPAY = "repay"
"""Job option with the time when a user agreed to pay again for rows whose answers are lost."""


def job_state(job: Job, counts: Counts, *, submitted: bool) -> JobState:
    """Return a job's state from its record, its row counts, and whether any row was submitted."""
    if job.error is not None:
        return JobState.FAILED
    if job.finished_at is not None:
        return JobState.CANCELLED if job.cancel_requested_at else JobState.COMPLETED
    if job.cancel_requested_at is not None:
        return JobState.CANCELLING
    if job.built_at is None:
        return JobState.WAITING if job.options.get("after") and not counts.total else JobState.BUILDING
    if counts.pending == 0:
        return JobState.MERGING
    return JobState.RUNNING if submitted else JobState.QUEUED


class BookedUsage(Struct, frozen=True):
    """Tokens and dollars of a group's ledger lines for one backend, model and day (UTC).

    `wasted` is the part of `cost` whose answers are missing or not used. `uncertain` is the part of `wasted` for
    sends without an answer; the provider may not bill it. `unpriced` counts lines whose cost leaves out something
    that their answer used. `listed` is the booked list price. Lines without a list price (None) are grouped
    separately.
    """

    group: str
    backend: str
    model: str
    day: date
    rows: int
    usage: Usage
    cost: Decimal
    uncertain: Decimal
    wasted: Decimal
    estimated: bool
    unpriced: int = 0
    listed: Decimal | None = None
