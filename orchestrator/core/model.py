"""The words of the domain: states, the moves between them, and the facts that travel between modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NewType

from orchestrator.core.counts import Counts
from orchestrator.core.errors import OutputFault

JobId = NewType("JobId", str)

NIGHT = "night"
"""The option of a job that names the night it was made for: until that has it, only that builds it."""
SUPERSEDED_BY = "superseded_by"
"""The option of a job that names the one made of its file after an edit, by its id."""
MAX_TOKENS = 2**31 - 1
"""Tokens that a request or an answer may have: what every database holds."""
PICO = Decimal(10) ** -12
"""Money is kept in whole picodollars: the cheapest cached token costs 2,500 of them, and sums stay exact."""


class RequestState(StrEnum):
    """Where one request stands. All but `pending` are outcomes, and an outcome never changes."""

    PENDING = "pending"  # no outcome yet: waits for a shard, or is in one
    SUCCEEDED = "succeeded"  # an answer is here and passed its checks
    FAILED = "failed"  # rejected, or its answer failed a check, or its document could not be read
    CANCELLED = "cancelled"  # the user, or the budget, ended the job before it ran
    EXPIRED = "expired"  # the deadline passed, and the job said not to finish late

    @property
    def is_final(self) -> bool:
        """Whether this is an outcome."""
        return self is not RequestState.PENDING


class JobState(StrEnum):
    """What a job is, told from its rows (see `job_state`); it is stored nowhere."""

    WAITING = "waiting"  # for the job that it comes after
    BUILDING = "building"  # documents are being read
    QUEUED = "queued"  # built; nothing has been submitted yet
    RUNNING = "running"
    CANCELLING = "cancelling"
    MERGING = "merging"  # every row has an outcome; the result file is not written yet
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"  # the job as a whole could not go on; `error` says why

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the job."""
        return self in (JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED)


class JobKind(StrEnum):
    """What a job was made from."""

    DOCUMENTS = "documents"  # a YAML job file
    BATCH = "batch"  # a ready OpenAI batch file


@dataclass(frozen=True, slots=True)
class Job:
    """One submit. `spec` is the job file as it is stored (empty for a batch file), which `settings.spec_of` reads.

    Times are aware UTC.

    `ignored` counts what the job's folders held that is not a document (`documents.ignored`); None for a batch file.
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
        """Whether its rows are done and kept, and could not be put where its file wants them."""
        return self.finished_at is not None and self.error_code in set(OutputFault)

    @property
    def is_limited(self) -> bool:
        """Whether it asks some documents or tasks of its file alone; what it leaves out is not gone."""
        return self.limited_to is not None

    @property
    def limited_to(self) -> str | None:
        """What the job is limited to, for people; None where it is about all of its file."""
        return scope_words(self.options)


class CancelCode(StrEnum):
    """Who or what ended a job before its time."""

    USER = "user"
    BUDGET = "budget"  # its own, or one that it shares
    CANARY = "canary"  # the rows that went first came back badly
    SUPERSEDED = "superseded"  # its file was edited, and the job of the new content has what was under way


class JobFault(StrEnum):
    """Why a job as a whole could not go on; a job whose rows are done, and are not where they belong, has an
    `OutputFault` instead."""

    INPUT = "bad_input"  # its file or its documents, and a person can mend them
    INTERNAL = "internal_error"  # a defect of orch; the log has the traceback
    FILES = "job_files"  # its own files in the home are gone, or cannot be written
    NO_ROOM = "no_room"  # [retention] leaves no room for its requests, or the disk is full
    AFTER = "after_failed"  # the job that it comes after did not finish well
    REFUSED = "refused"  # no plan holds its deadline or its budget, or no backend may have it


def scope_words(options: Mapping[str, Any]) -> str | None:
    """What options of a job limit it to, for people; None where they do not."""
    first, only, tasks = (options.get(name) for name in ("limit", "only", "tasks"))
    told = [f"the first {first:,} documents"] if first else []
    told += [f"documents {', '.join(only)}"] if only else []
    told += [f"tasks {', '.join(tasks)}"] if tasks else []
    return "; ".join(told) or None


class Why(StrEnum):
    """Why a build found something to ask, or nothing: a row against the one that the last run of its job file has."""

    NEW = "new"  # the last run did not ask this of this document
    DOCUMENT = "document changed"  # its text, or why it cannot be read
    PROMPT = "prompt changed"  # the question or the system prompt
    PARAMETERS = "parameters changed"  # schema, bound, temperature, clean-up and the like
    MODEL = "model changed"  # another alias
    READER = "reader changed"  # this version of orch reads documents in another way
    FAILED = "failed before"
    UNANSWERED = "no answer held"  # cancelled, expired, still open; or another job's answer that may not be used now
    ASKED = "asked for (--new)"  # nothing changed, and it is asked again all the same
    UNCHANGED = "unchanged"  # an earlier run has the outcome


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer, and the searches that its provider made for it.

    `input_tokens` includes `cached_tokens` (read from the provider's cache) and `cache_write_tokens` (put into it),
    `output_tokens` includes `reasoning_tokens`. `cache_write_1h_tokens` are the written
    tokens that stay for an hour. Tokens of sound and pictures are parts of what went in and came out.
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


@dataclass(frozen=True, slots=True)
class Span:
    """Where a line lies: bytes `[offset, offset + length)` of a file, without its newline."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Row:
    """One request as it is built: its place in the job, and who it is.

    `problem` is `(code, message)` where the document could not be turned into a request; such a row fails at once.
    `inputs` counts what an embedding row has; `max_output` bounds the answer, in tokens, where the row has a bound.
    `cache_key` is the same for all requests that one answer would do for, None where it is asked for each by itself.
    `trimmed_tokens` are those that the clean-up took off the document, estimated. `content` stands for the document's
    bytes and text, None where it could not be read; `wording` for the question's prompts. Of a document that is asked
    in `parts`, one row asks about their answers, and behind it there is one for each `part`, from 1. `sent_as` says
    which pages go as pictures, None where none does. `text_at` says where the document's text stands in the request,
    as `grounding.TextAt` writes it, if answers have quotes of it.
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
    text_at: str | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was forecast when something was sent, and what came: `actual` is None until it is known.

    `kind` is `turnaround` (seconds of one shard), `cost` (dollars of a job), `output` (tokens of an answer to a task,
    on the mean), `finish` (seconds of a job) or `in_time` (the chance that it keeps its deadline; 1 came where it
    did). `source` says where the figure is from. What was cut short is `censored`: it would have been more.
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


@dataclass(frozen=True, slots=True)
class ProgressSample:
    """How far a job was at one of our own backends at a time: rows done there, their tokens, and rows `left` there.

    Rows in back-off, between two attempts, are not `left`. `series` is its job file.
    """

    job_id: JobId
    series: str
    backend: str
    at: datetime
    done: int
    left: int
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request in one shard, and where its result line lies.

    `kind` is the result file (`output` or `error`), None where there is no line. `upstream_seconds` is the row's
    share of the upstream's time, which is what a local row costs. `tier` is the service tier that the answer says it
    was given. `uncertain` counts sends of the row that no answer came to, which may be billed all the same.
    `status` is the HTTP status of the backend's answer to the row, None where it gave none. `answer_bytes` is the
    length of an answer's text where it tells no tokens. `billed` are the tokens that are paid for, None if they are
    those of `usage`. `answered_at` is the time of the answer in Unix seconds, as far as it tells one. `unpriced`
    names what the answer used that no price covers. `cut` is True for an accepted
    answer that ended at `max_tokens`, `repaired` for one whose JSON stood in other text, `odd_end` for one that ended
    for a reason that nobody knows, `unverifiable` for one with a quote that can be neither proven nor refuted.
    `quotes` are those of the answer with their places, as `grounding.Grounding` writes them.
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
        """True if the backend answered the row with a success, whatever that is worth."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_marked(self) -> bool:
        """True for an accepted answer that is counted apart."""
        return self.cut or self.repaired or self.odd_end or self.unverifiable


@dataclass(frozen=True, slots=True)
class FinishedRow:
    """A row as the merge needs it. `result` is (shard, kind, span) of its result line, None where it has none."""

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
    repaired: bool = False
    quotes: str | None = None

    @property
    def stage(self) -> str | None:
        """`map` for a part of a long document, `reduce` for the answers of its parts, None for a document at once."""
        return None if self.parts is None else "reduce" if self.part is None else "map"


@dataclass(frozen=True, slots=True)
class Price:
    """What an answer cost, in US dollars, and where that figure comes from.

    `unpriced`: the answer used something that has no price of its own, which is an estimate too.
    """

    cost: Decimal
    source: str
    estimated: bool = False
    unpriced: bool = False


REPAY = "repay"
"""The option of a job that says when somebody agreed to pay again for rows whose answers are lost."""


def job_state(job: Job, counts: Counts, *, submitted: bool) -> JobState:
    """The state of a job, from its own facts, its rows, and whether anything of it was submitted."""
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
