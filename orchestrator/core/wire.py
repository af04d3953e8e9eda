"""OpenAI's Batch API shapes, shared by client and server, named as OpenAI names them.

Bodies of requests and answers stay raw bytes: a line is checked and passed on, never rebuilt.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec

ENDPOINTS = (
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/completions",
    "/v1/moderations",
)
MAX_LINE_BYTES = 32 * 1024 * 1024
MAX_LINE_ERRORS = 100
MAX_DEPTH = 500
"""How deep lists and objects may be nested in a line or an answer. A decoder goes as deep as the stack of its thread
allows, so without a limit of its own, what one thread accepts another one could not read."""
NO_BODY = msgspec.Raw(b"null")
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no JSON of the wanted shape, too deep (a model may repeat `[` to its end),
or no UTF-8."""


class BatchStatus(StrEnum):
    """A batch's status word, in lower case; a provider's own spelling is lowered where it enters."""

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
        """Whether the batch will not change any more."""
        return self in (BatchStatus.COMPLETED, BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


class ErrorObject(msgspec.Struct, frozen=True):
    """The inner object of an error body."""

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
    """The status word of an upload in parts; only a pending one changes."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Upload(msgspec.Struct, frozen=True):
    """An upload in parts; `bytes` is what was announced, `file` what it became once it is completed."""

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
    """One entry of `batch.errors.data`; `line` counts from 1."""

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
    """`batch.usage`: the sum of the successful rows, in Responses names for every endpoint."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch object; times are whole seconds since 1970, and every key is always there."""

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


class RequestLine(msgspec.Struct, frozen=True):
    """One line of a batch input file. Fields that are missing or of another type are found by `check_line`."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = NO_BODY


class _BodyHead(msgspec.Struct, frozen=True):
    model: Any = None
    stream: Any = None
    messages: msgspec.Raw = NO_BODY


Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""What a database's integer holds."""


class Provenance(msgspec.Struct, frozen=True, omit_defaults=True):
    """How our server got a result: an extension of the result line, given when the batch asks for it.

    `uncertain` counts how often the row was sent and no answer came; the upstream may bill that all the same.
    """

    upstream: str
    latency_ms: Count
    upstream_seconds: Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
    attempts: Count
    uncertain: Count = 0


class ResultResponse(msgspec.Struct, frozen=True):
    """`response` of a result line."""

    status_code: int = 0
    request_id: str | None = None
    body: msgspec.Raw = NO_BODY


class ResultLine(msgspec.Struct, frozen=True):
    """One line of an output or error file, read leniently."""

    custom_id: str | None = None
    id: str | None = None
    response: ResultResponse | None = None
    error: Any = None
    orch: Provenance | None = None


class CheckedLine(msgspec.Struct, frozen=True):
    """A request line that passed every check."""

    custom_id: str
    url: str
    model: str | None
    body: msgspec.Raw


_decode_line = msgspec.json.Decoder(RequestLine).decode
_decode_head = msgspec.json.Decoder(_BodyHead).decode
FEW_BRACKETS = 20
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[{")
# A string that does not end is one token too, so that nothing is looked at twice.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)|[][{}]', re.DOTALL)
_TEXT_VALUE = re.compile(rb'[ \t\r\n]*:[ \t\r\n]*("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_BOM = b"\xef\xbb\xbf"
_WHITE_SPACE = b" \t\r\n"
_BLANK = (b"{}", b"null", b"[]", b'""')


def _missing(param: str) -> LineError:
    return LineError("missing_required_parameter", f"Missing required parameter: '{param}'.", param)


def is_too_deep(raw: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether JSON nests more than `most` lists and objects in one another; found without recursion.

    Nearly all of it has fewer of them than that, which takes a look at its brackets alone: 0.5 µs at a row of 1 kB.
    """
    if len(raw) <= 2 * most or _has_few_brackets(raw) or len(raw.translate(None, _NO_BRACKETS)) <= most:
        return False
    depth = 0
    for token in _TOKENS.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
            if depth > most:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _has_few_brackets(raw: bytes) -> bool:
    """Whether it has hardly any list or object: of a long text, a search for the next one is what costs least."""
    if len(raw) < 2048:
        return False
    find, left = raw.find, FEW_BRACKETS
    for bracket in (b"{", b"["):
        place = find(bracket)
        while place >= 0:
            left -= 1
            if not left:
                return False
            place = find(bracket, place + 1)
    return True


def find_custom_id(raw: bytes) -> msgspec.Raw | None:
    """The custom_id of a line as JSON, also where no decoder reads the line; None where it has none."""
    depth = 0
    for token in _TOKENS.finditer(raw):
        first = raw[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        elif depth == 1 and token[0] == b'"custom_id"' and (found := _TEXT_VALUE.match(raw, token.end())):
            with contextlib.suppress(*JSON_ERRORS):
                found[1].decode()
                msgspec.json.decode(found[1], type=str)
                return msgspec.Raw(found[1])
    return None


TOO_DEEP = LineError("invalid_json_line", f"This line nests lists and objects more than {MAX_DEPTH} deep.")


def check_line(raw: bytes, endpoint: str | None = None) -> CheckedLine | LineError:
    """Check one request line as the Batch API does; `endpoint` is the batch's, None where lines may differ.

    Not checked here: what needs the other lines (a custom_id given twice, models that differ).
    """
    if len(raw) > MAX_LINE_BYTES:
        return LineError("invalid_json_line", f"This line is longer than {MAX_LINE_BYTES:,} bytes.")
    try:
        line = _decode_line(raw)
        raw.decode()  # the JSON decoder does not look into strings that it skips
    except RecursionError:
        return TOO_DEEP
    except JSON_ERRORS:
        return LineError("invalid_json_line", "This line is not parseable as valid JSON.")
    if is_too_deep(raw):
        return TOO_DEEP
    if fault := _check_frame(line, endpoint):
        return fault
    try:
        head = _decode_head(line.body)
    except JSON_ERRORS:
        return LineError("invalid_request", "The body must be a JSON object.", "body")
    if fault := _check_body(head, line.url):
        return fault
    return CheckedLine(line.custom_id, line.url, head.model, line.body)


def _check_frame(line: RequestLine, endpoint: str | None) -> LineError | None:
    for param, value in (("custom_id", line.custom_id), ("method", line.method), ("url", line.url)):
        if value is None or value == "":
            return _missing(param)
        if not isinstance(value, str):
            return LineError("invalid_request", f"'{param}' must be a string.", param)
    if _is_blank(line.body):
        return _missing("body")
    if line.method != "POST":
        return LineError("invalid_request", "The method must be 'POST'.", "method")
    if endpoint is None and line.url not in ENDPOINTS:
        return LineError("invalid_url", f"The URL must be one of {', '.join(ENDPOINTS)}.", "url")
    if endpoint is not None and line.url != endpoint:
        return LineError("invalid_url", "The URL provided for this request does not match the batch endpoint.", "url")
    return None


def _is_blank(value: msgspec.Raw) -> bool:
    return memoryview(value).nbytes < 100 and b"".join(bytes(value).split()) in _BLANK


def _check_body(head: _BodyHead, url: str) -> LineError | None:
    if head.model is None or head.model == "":
        return LineError("invalid_request", "Model parameter is required.", "body.model")
    if not isinstance(head.model, str):
        return LineError("invalid_request", "Model must be a string.", "body.model")
    if head.stream:
        # OpenAI names its first endpoint so in this text; what it says at others is not known.
        prefix = "Chat Completions: " if url == "/v1/chat/completions" else ""
        return LineError(
            "streaming_unsupported", f"{prefix}Streaming is not supported in the Batch API.", "body.stream"
        )
    if url == "/v1/chat/completions" and _is_blank(head.messages):
        return LineError("invalid_request", "Messages parameter is required.", "body.messages")
    return None


def lines(file: BinaryIO, longest: int = MAX_LINE_BYTES) -> Iterator[tuple[int, int, bytes]]:
    """`(number from 1, offset, line)` of each line that is not blank; a BOM and line ends are left out.

    Only "\\n" ends a line, and a blank one has nothing but JSON's white space. Of a line above `longest` no more than
    that and a few bytes is held or given: enough for `check_line` to refuse it.
    """
    offset = 0
    number = 0
    readline, most = file.readline, len(_BOM) + longest + 2
    while part := readline(most):
        number += 1
        start, raw = offset, part
        offset += len(part)
        while not part.endswith(b"\n") and (part := readline(1 << 20)):
            offset += len(part)
        if number == 1 and raw.startswith(_BOM):
            raw, start = raw.removeprefix(_BOM), start + len(_BOM)
        raw = raw.rstrip(b"\r\n")
        if raw and (raw[0] > 32 or raw.strip(_WHITE_SPACE)):
            yield number, start, raw


def window_seconds(text: str) -> int | None:
    """Seconds of a completion window such as `24h`, `90m` or `7d`; None if it is no window."""
    found = re.fullmatch(r"([1-9]\d{0,6})([smhd])", text, re.ASCII)
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]] if found else None


def id_key(custom_id: str) -> int:
    """64 bits that stand for a custom_id within this process: a fraction of its memory, no collision in practice."""
    return hash(custom_id) & 0xFFFF_FFFF_FFFF_FFFF


def duplicate_error(custom_id: str) -> LineError:
    """The entry for a custom_id that an earlier line has."""
    return LineError(
        "duplicate_custom_id",
        f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
        "The custom_id parameter must be unique for each request in a batch.",
        "custom_id",
    )


MOST_TOKENS = 10**8
Tokens = Annotated[int, msgspec.Meta(ge=0, lt=MOST_TOKENS)]
"""No model reads or writes as many; a usage that says so says nothing."""


class _Details(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: Tokens | None = 0
    cache_write_tokens: Tokens | None = 0
    reasoning_tokens: Tokens | None = 0


class _AnswerUsage(msgspec.Struct, frozen=True, gc=False):
    """Usage under either of its two spellings: chat completions' and responses'."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    total_tokens: Any = None


class _Used(msgspec.Struct, frozen=True, gc=False):
    usage: _AnswerUsage | None = None


class _Answer(msgspec.Struct, frozen=True):
    model: Any = None
    service_tier: Any = None
    error: Any = None
    usage: _AnswerUsage | None = None


class _Parts(msgspec.Struct, frozen=True):
    """The same, each part to be read by itself: one that cannot be represented leaves the others readable."""

    model: msgspec.Raw = NO_BODY
    service_tier: msgspec.Raw = NO_BODY
    error: msgspec.Raw = NO_BODY
    usage: msgspec.Raw = NO_BODY


_decode_used = msgspec.json.Decoder(_Used).decode
_decode_usage = msgspec.json.Decoder(_AnswerUsage | None, strict=False).decode
_decode_parts = msgspec.json.Decoder(_Parts).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_NO_DETAILS = _Details()


class TokenCounts(NamedTuple):
    """An answer's tokens: `cached` and `cache_write` are parts of `input`, `reasoning` of `output`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    cache_write: int = 0


NO_TOKENS = TokenCounts()


class AnswerHead(NamedTuple):
    """What an answer says of itself: `tier` is its `service_tier`; `error` is there where the answer is none."""

    tokens: TokenCounts = NO_TOKENS
    model: str | None = None
    tier: str | None = None
    error: Any = None


def answer_tokens(body: bytes | msgspec.Raw) -> TokenCounts:
    """What an answer's body says of its tokens. Raises msgspec.DecodeError where it is no JSON object."""
    try:
        usage = _decode_used(body).usage
    except msgspec.ValidationError:
        # Usage of a shape that is not known is no usage; the answer is still the row's answer.
        usage = _usage_in_text(_decode_parts(body).usage)
    return NO_TOKENS if usage is None else _counted(usage)


def _usage_in_text(raw: msgspec.Raw) -> _AnswerUsage | None:
    """A usage whose numbers may be told as text; None for any other shape."""
    try:
        usage: _AnswerUsage | None = _decode_usage(raw)
    except JSON_ERRORS:
        return None
    return usage


def _counted(usage: _AnswerUsage) -> TokenCounts:
    taken = usage.prompt_tokens_details or usage.input_tokens_details or _NO_DETAILS
    given = usage.completion_tokens_details or usage.output_tokens_details or _NO_DETAILS
    fed = usage.prompt_tokens or usage.input_tokens or 0
    cached = taken.cached_tokens or 0
    written = taken.cache_write_tokens or 0
    output = usage.completion_tokens or usage.output_tokens or 0
    thought = given.reasoning_tokens or 0
    # xAI counts thoughts beside the completion, which the total shows; what is more than a whole is no part of it.
    if thought and (thought > output or _total(usage) == fed + output + thought):
        output += thought
    if cached + written > fed:
        fed += cached + written
    return TokenCounts(fed, cached, output, thought, written) if fed < MOST_TOKENS > output else NO_TOKENS


def _total(usage: _AnswerUsage) -> int | None:
    """The total that a usage tells, as a number or as text; None for any other: it spoils none of the parts."""
    try:
        total: int | None = msgspec.convert(usage.total_tokens, Tokens | None, strict=False)
    except msgspec.ValidationError:
        return None
    return total


def usage_of(tokens: TokenCounts) -> BatchUsage:
    """Tokens as the usage object of a batch."""
    return BatchUsage(
        tokens.input,
        InputTokensDetails(tokens.cached),
        tokens.output,
        OutputTokensDetails(tokens.reasoning),
        tokens.input + tokens.output,
    )


def read_answer(body: bytes | msgspec.Raw) -> AnswerHead:
    """What an answer's body says of itself. Raises msgspec.DecodeError where it is no JSON object."""
    try:
        answer = _decode_answer(body)
    except msgspec.ValidationError:
        answer = _read_parts(_decode_parts(body))
    return AnswerHead(
        NO_TOKENS if answer.usage is None else _counted(answer.usage),
        answer.model if isinstance(answer.model, str) else None,
        answer.service_tier if isinstance(answer.service_tier, str) else None,
        answer.error,
    )


def _read_parts(parts: _Parts) -> _Answer:
    error = _read(parts.error, unreadable=bytes(parts.error).decode(errors="replace"))
    return _Answer(_read(parts.model), _read(parts.service_tier), error, _usage_in_text(parts.usage))


def _read(raw: msgspec.Raw, unreadable: str | None = None) -> Any:
    """The value, or `unreadable` where Python has none for it, as for a number beyond all floats."""
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        return unreadable
