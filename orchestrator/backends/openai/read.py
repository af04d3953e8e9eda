"""A lenient reader of batches and files from OpenAI-compatible APIs, in all known spellings. Pure.

It reads the JSON itself, not the client's types: words in other cases, numbers as text, missing fields, and
undocumented shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import httpx2

from orchestrator.backends import HOME_KEY, SHARD_KEY, DoctorCheck, LineProblem, RemoteBatch, RemoteFile, lenient
from orchestrator.backends.openai.api import ApiRefusal
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.clock import now
from orchestrator.core.error_body import ErrorWords
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NoRoom,
    NotSent,
    OrchError,
    Uncertain,
)
from orchestrator.core.refusal_words import refuses_request
from orchestrator.core.retry_after import retry_after
from orchestrator.policy.row_errors import is_account

SKEW_SECONDS = 60.0
MOST_PROBLEMS = 1000
DEEPEST = 4

_OTHER_WORDS = {
    "queued": BatchStatus.VALIDATING,
    "pending": BatchStatus.VALIDATING,
    "created": BatchStatus.VALIDATING,
    "running": BatchStatus.IN_PROGRESS,
    "inprogress": BatchStatus.IN_PROGRESS,
    "processing": BatchStatus.IN_PROGRESS,
    "success": BatchStatus.COMPLETED,
    "succeeded": BatchStatus.COMPLETED,
    "complete": BatchStatus.COMPLETED,
    "done": BatchStatus.COMPLETED,
    "finished": BatchStatus.COMPLETED,
    "ended": BatchStatus.COMPLETED,
    "error": BatchStatus.FAILED,
    "errored": BatchStatus.FAILED,
    "failure": BatchStatus.FAILED,
    "timeout": BatchStatus.EXPIRED,
    "timed_out": BatchStatus.EXPIRED,
    "timeout_exceeded": BatchStatus.EXPIRED,
    "cancellation_requested": BatchStatus.CANCELLING,
    "canceling": BatchStatus.CANCELLING,
    "canceled": BatchStatus.CANCELLED,
    "aborted": BatchStatus.CANCELLED,
}
_ENDS = (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED)


def status_of(said: object) -> BatchStatus | None:
    """Return a provider's status word, or None if it is unknown."""
    word = lenient.word(said)
    try:
        return BatchStatus(word)
    except ValueError:
        return _OTHER_WORDS.get(word)


def _status(told: Mapping[str, Any]) -> BatchStatus:
    """Return a batch's status; for an unknown word, the end that has a time. Without such a time it still runs."""
    known = status_of(told.get("status"))
    if known is not None:
        return known
    return next((end for end in _ENDS if lenient.time(told.get(f"{end}_at")) is not None), BatchStatus.IN_PROGRESS)


def remote_batch(told: object, asked: str | None = None) -> RemoteBatch:
    """Read a batch; an answer may omit the requested id, `asked`.

    Raises ValueError if it is not a batch, or not the requested one.
    """
    told = lenient.mapping(lenient.unwrapped(told))
    found = lenient.batch_id(told, asked, mark="status")
    counts, usage = lenient.mapping(told.get("request_counts")), lenient.mapping(told.get("usage"))
    completed, failed = (lenient.count(counts.get(name)) for name in ("completed", "failed"))
    return RemoteBatch(
        id=found,
        status=_status(told),
        completed=completed or 0,
        failed=failed or 0,
        is_counted=completed is not None or failed is not None,
        input_tokens=lenient.count(usage.get("input_tokens"), lenient.MOST_TOKENS) or 0,
        output_tokens=lenient.count(usage.get("output_tokens"), lenient.MOST_TOKENS) or 0,
        upstream_seconds=lenient.seconds(told.get("upstream_seconds")),
        input_file_id=lenient.name(told.get("input_file_id")),
        output_file_id=lenient.name(told.get("output_file_id")),
        error_file_id=lenient.name(told.get("error_file_id")),
        problems=tuple(_problems(told.get("errors")))[:MOST_PROBLEMS],
        shard=shard_of(told),
        home=lenient.name(lenient.mapping(told.get("metadata")).get(HOME_KEY)),
        # Rows are not counted before the file has been read.
        rows=lenient.count(counts.get("total")) or None,
        created_at=lenient.time(told.get("created_at")),
        over_at=next((at for end in _ENDS if (at := lenient.time(told.get(f"{end}_at"))) is not None), None),
    )


def shard_of(told: object) -> str | None:
    """Return the shard id that a batch carries, even if the batch is otherwise unreadable."""
    return lenient.name(lenient.mapping(lenient.mapping(told).get("metadata")).get(SHARD_KEY))


def _problems(told: object, depth: int = 0) -> Iterator[LineProblem]:
    """Yield reasons of a refusal from a list of objects (OpenAI's), of texts, a map of codes, or a single value."""
    if depth > DEEPEST or not told:
        return
    if isinstance(told, list):
        for one in told:
            yield from _problems(one, depth + 1)
    elif isinstance(told, dict):
        inner = next((told[key] for key in ("data", "errors", "error") if told.get(key)), None)
        if "message" in told or "code" in told:
            line = lenient.count(told.get("line"))
            yield LineProblem(
                lenient.text(told.get("code")) or "error", lenient.text(told.get("message")), line or None
            )
        elif inner is not None:
            yield from _problems(inner, depth + 1)
        elif told.get("object") != "list":
            yield from (LineProblem(lenient.text(code), lenient.text(said)) for code, said in told.items())
    else:
        yield LineProblem("error", lenient.text(told))


def remote_file(told: object) -> RemoteFile:
    """Read a file. Raises ValueError if it is not a file."""
    found = lenient.mapping(lenient.unwrapped(told))
    file_id = lenient.name(found.get("id"))
    if file_id is None:
        raise ValueError("the answer is not a file")
    size = lenient.count(found.get("bytes"), lenient.MOST_TOKENS)
    return RemoteFile(file_id, lenient.text(found.get("filename")), size, lenient.time(found.get("created_at")))


def clock_check(date: datetime | None, now: datetime) -> DoctorCheck | None:
    """Report a clock that differs from the backend's by more than a minute; None otherwise."""
    if date is None or abs(skew := (now - date).total_seconds()) <= SKEW_SECONDS:
        return None
    side = "ahead of" if skew > 0 else "behind"
    found = f"the clock here is {abs(skew):,.0f} s {side} the backend's: deadlines follow the clock here"
    return DoctorCheck("clock", False, found)


UNREADABLE = (ValueError, TypeError, AttributeError)
"""Errors from reading an answer that is not JSON, or of another shape."""

_NEVER_LEFT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_COLLECTIONS = ("/files", "/batches", "/models")
_LONGEST_DETAIL = 500
_OWN_DISK = (507, "storage")
"""The refusal of our own server whose disk is full."""
_TOO_LARGE = 413
LONGEST_RETRY = 86_400.0
"""Longest pause, in seconds, that a provider may request: no quota is longer than a day."""


def meaning(error: Exception, what: str, *, creating: bool, secret: str) -> OrchError:
    """Return our error for a failed call; `what` says what failed, and for whom.

    `creating` is the call that costs money: if it may have been carried out, the error is Uncertain. The `secret`
    never appears in a message, even if the provider's own message contains it.
    """

    def told(detail: str) -> str:
        return f"{what}: {lenient.plain(detail.replace(secret, '[key]'))[:_LONGEST_DETAIL]}"

    if isinstance(error, ApiRefusal):
        return _of_answer(error, told(error.said or f"status {error.status}"), creating=creating)
    unread = f"it does not answer like a Batch API ({error})" if isinstance(error, UNREADABLE) else None
    return unanswered(
        error, told(unread or str(error) or type(error).__name__), creating, is_unread=unread is not None
    )


def unanswered(cause: BaseException, message: str, creating: bool, *, is_unread: bool) -> OrchError:
    """Return our error for a call without an answer, or with an unreadable one."""
    if is_unread:
        return Uncertain(message) if creating else BackendError(message, hint="check base_url")
    if isinstance(cause, _NEVER_LEFT):
        return NotSent(message)
    return Uncertain(message) if creating else BackendError(message)


def _of_answer(error: ApiRefusal, message: str, *, creating: bool) -> OrchError:
    status, code, after = error.status, code_of(error), asked_pause(error.headers)
    if (status, code) == _OWN_DISK:
        return NoRoom(message, hint="free disk space, then run the same command again")
    if is_account(status, code, error.kind, names_field=_is_about_request(error)):
        hint = "check the key and the account's credit; `orch doctor` tests it again"
        return AccountError(message, status=status, code=code, hint=hint)
    # A gateway also sends 503 after losing an answer; a server that asks to retry has not carried out the call.
    if status == 429 or (status == 503 and not (creating and after is None)):
        return BackendBusy(message, status=status, code=code, retry_after=after)
    if status >= 500 or status == 408 or (creating and status == 409):
        return Uncertain(message) if creating else BackendError(message)
    if status < 400:
        return unanswered(error, message, creating, is_unread=True)
    if is_not_its_own(error):
        return NotSent(message, hint="check base_url")
    return BackendRefused(message, status=status, code=code, retry_after=after)


def _is_about_request(error: ApiRefusal) -> bool:
    param = None if error.param is None else lenient.text(error.param)
    return refuses_request(error.status, ErrorWords(error.said, code_of(error), error.kind, param))


def is_not_its_own(error: ApiRefusal) -> bool:
    """True if a refusal is not from the API: without an error object it is a gateway's, or the API does not exist.

    A gateway in front may refuse a file that is too large.
    """
    if not error.said:
        return error.status != _TOO_LARGE
    is_collection = error.path.rstrip("/").endswith(_COLLECTIONS)
    return error.status in (404, 405) and is_collection and error.code is None and error.param is None


def code_of(error: ApiRefusal) -> str | None:
    """Return the provider's code for the cause, or None."""
    return None if error.code is None else lenient.text(error.code)


def asked_pause(headers: httpx2.Headers) -> float | None:
    """Return the requested pause in seconds, at most a day; None if not stated."""
    return retry_after(headers.get, now(), most=LONGEST_RETRY)
