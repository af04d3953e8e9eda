"""OpenAI's Batch API objects, shared by client and server, with OpenAI's names.

Bodies of requests and answers stay raw bytes. A line is checked and passed on, never rebuilt.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

CHAT, RESPONSES, EMBEDDINGS = "/v1/chat/completions", "/v1/responses", "/v1/embeddings"
ENDPOINTS = (RESPONSES, CHAT, EMBEDDINGS, "/v1/completions", "/v1/moderations")
WITHOUT_OUTPUT = frozenset({EMBEDDINGS, "/v1/moderations"})
"""Endpoints whose output is bounded by the input and never billed."""
MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_LINE_ERRORS = 100
MAX_DEPTH = 500
"""Maximum nesting of lists and objects in a line or an answer.

A decoder's own limit depends on the thread's stack. Without MAX_DEPTH, a thread could accept a line that another
thread cannot read.
"""
NO_BODY = msgspec.Raw(b"null")
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding bytes that are not JSON of the expected shape, not UTF-8, or nested too deeply.

For example, a model may repeat `[` up to its token limit.
"""


def read_json(raw: bytes | msgspec.Raw, unreadable: str | None = None) -> Any:
    """Decode a value. Return `unreadable` if Python cannot represent it, such as a number too large for a float."""
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return unreadable


class BatchStatus(StrEnum):
    """Status of a batch, in lower case. Providers' own spellings are lowercased on reading."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if the batch can no longer change."""
        return self in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


class ErrorObject(msgspec.Struct, frozen=True):
    """The error object inside an error body."""

    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None


class File(msgspec.Struct, frozen=True):
    """A file object."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None


class UploadStatus(StrEnum):
    """Status of an upload in parts. Only a pending upload can change."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Upload(msgspec.Struct, frozen=True):
    """An upload in parts. `bytes` is the announced size; `file` is the resulting file after completion."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: UploadStatus
    expires_at: int
    file: File | None = None
    object: str = "upload"


class UploadPart(msgspec.Struct, frozen=True):
    """One part of an upload."""

    id: str
    created_at: int
    upload_id: str
    object: str = "upload.part"


class LineError(msgspec.Struct, frozen=True):
    """An entry of `batch.errors.data`. `line` counts from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class LineErrors(msgspec.Struct, frozen=True):
    """`batch.errors`."""

    data: list[LineError]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """`batch.request_counts`."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Part of `batch.usage`."""

    cached_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Part of `batch.usage`."""

    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct, frozen=True):
    """`batch.usage`: token sums of the successful rows, with the Responses API's names for every endpoint."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch object. Times are whole seconds since 1970, and every key is always present."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None
    errors: LineErrors | None = None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None


Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""A count that fits a database's 32-bit integer."""


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """Details of a result from our server, an extension of the result line that a batch can request.

    `uncertain` counts the row's unanswered sends, which the upstream may bill. `window_full` is true if prompt and
    answer fill the upstream's stated context window, whatever the finish reason says.
    """

    upstream: str
    latency_ms: Count
    upstream_seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
    attempts: Count
    uncertain: Count = 0
    window_full: bool = False


class ResultResponse(msgspec.Struct, frozen=True):
    """The field `response` of a result line."""

    status_code: int = 0
    request_id: str | None = None
    body: msgspec.Raw = NO_BODY


class ResultLine(msgspec.Struct, frozen=True):
    """A line of an output or error file, read leniently."""

    custom_id: str | None = None
    id: str | None = None
    response: ResultResponse | None = None
    error: Any = None
    orch: Provenance | None = None
