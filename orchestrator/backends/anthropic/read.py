"""A lenient reader of Anthropic's batches and results, in the program's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import anthropic
import msgspec

from orchestrator.backends import BATCH_GONE, Intent, LineProblem, RemoteBatch, inline_rows, lenient
from orchestrator.backends.anthropic.results import result_line
from orchestrator.backends.call_errors import asked_pause, unanswered
from orchestrator.backends.listing import FURTHEST_OFF
from orchestrator.core import batch_api
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NotSent,
    OrchError,
    Uncertain,
)
from orchestrator.core.refused_fields import ProviderError, names_request_field
from orchestrator.policy.row_errors import Disposition, classify, is_account

FIND_SLACK = timedelta(minutes=10)
LATEST = timedelta(hours=1)
"""Time after the intent in which an unanswered create may still be carried out."""
RESULTS = "results:"
ALL_REFUSED = "refused:"
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")
_ENDED = ("ended", "completed", "complete", "done")


class _Row(msgspec.Struct):
    custom_id: Any
    result: Any


decode_row = msgspec.json.Decoder(_Row).decode


def clock_skew(listed: Sequence[RemoteBatch], intent: Intent) -> timedelta | None:
    """Return how far the provider's clock is ahead, by our listed batches; None if no batch is ours."""
    ahead = sorted(
        batch.created_at - asked
        for batch in listed
        if batch.created_at is not None and (asked := intent.known(batch.id)) is not None
    )
    return ahead[len(ahead) // 2] if ahead else None


def may_be_of(batch: RemoteBatch, since: datetime, skew: timedelta | None) -> bool:
    """True if a batch may result from an intent of that time."""
    if batch.created_at is None:
        return True
    off = batch.created_at - since
    if skew is None:
        return abs(off) <= FURTHEST_OFF
    return skew - FIND_SLACK <= off <= skew + LATEST


def sent_row(line: bytes) -> tuple[str, bytes] | None:
    """Return the id in a line of results, and the digest of the request in it; None if it has none."""
    try:
        name = decode_row(line).custom_id
    except batch_api.JSON_ERRORS:
        return None
    digest = inline_rows.digest_of(name)
    return None if digest is None else (name, digest)


def read_result(line: bytes, ids: inline_rows.Ids) -> tuple[str, bytes]:
    """Convert a line of results to OpenAI's shape, with its file; a line that is not a row stays unchanged."""
    try:
        row = decode_row(line)
    except batch_api.JSON_ERRORS:
        return "output", line
    theirs = lenient.text(row.custom_id)
    return result_line(ids.ours(theirs), theirs, row.result)


def remote_batch(told: object, asked: str | None = None) -> RemoteBatch:
    """Read a batch. Raises ValueError if it is not a batch, or not the requested one."""
    found = lenient.mapping(told)
    name = lenient.batch_id(found, asked, mark="processing_status")
    counts = {one: lenient.count(lenient.mapping(found.get("request_counts")).get(one)) or 0 for one in _COUNTS}
    # A batch always has rows, so counts without any are unknown.
    is_told = any(counts.values())
    rows, created_at = sum(counts.values()) if is_told else None, lenient.time(found.get("created_at"))
    word = lenient.word(found.get("processing_status"))
    ended = word in _ENDED
    if ended and lenient.time(found.get("archived_at")) is not None:
        gone = LineProblem(BATCH_GONE, "its results are no longer kept")
        return RemoteBatch(name, BatchStatus.FAILED, problems=(gone,), rows=rows, created_at=created_at)
    # If nothing failed at Anthropic, the error file has only our own refused rows: nothing to fetch.
    kind = "error" if not is_told or counts["errored"] or counts["canceled"] or counts["expired"] else "refused"
    return RemoteBatch(
        id=name,
        status=_status(word, counts),
        completed=counts["succeeded"],
        failed=counts["errored"],
        is_counted=is_told,
        output_file_id=f"{RESULTS}{name}:output" if ended and (counts["succeeded"] or not is_told) else None,
        error_file_id=f"{RESULTS}{name}:{kind}" if ended else None,
        rows=rows,
        created_at=created_at,
        over_at=lenient.time(found.get("ended_at")),
    )


def _status(word: str, counts: Mapping[str, int]) -> BatchStatus:
    if word in _ENDED:
        if counts["expired"]:
            return BatchStatus.EXPIRED
        total = sum(counts.values())
        return BatchStatus.CANCELLED if total and counts["canceled"] == total else BatchStatus.COMPLETED
    return BatchStatus.CANCELLING if word in ("canceling", "cancelling") else BatchStatus.IN_PROGRESS


def all_refused(shard: str, rows: int = 0) -> RemoteBatch:
    """Return a batch without sent rows. Only its creation knows their number."""
    batch_id = f"{ALL_REFUSED}{shard}"
    return RemoteBatch(
        batch_id,
        BatchStatus.COMPLETED,
        failed=rows,
        is_counted=True,
        error_file_id=f"{RESULTS}{batch_id}:refused",
        shard=shard,
    )


UNREADABLE = (ValueError, TypeError, AttributeError, msgspec.ValidationError)
"""Errors from answers of another shape: the client does not validate answers."""

_BUSY_STATUSES = (429, 529)
_LONGEST_DETAIL = 500
_TOO_LARGE = 413
_ACCOUNT_HINT = "check the key and the account's credit; `orch doctor` tests it again"


def meaning(error: Exception, what: str, *, creating: bool, secret: str) -> OrchError:
    """Return our error for a failed call; `what` says what failed, and for whom.

    `creating` is the call that costs money: if it may have been carried out, the error is Uncertain. The `secret`
    never appears in a message, even if the provider's own message contains it.
    """

    def told(detail: str) -> str:
        return f"{what}: {lenient.plain(detail.replace(secret, '[key]'))[:_LONGEST_DETAIL]}"

    if isinstance(error, anthropic.APIStatusError):
        return _of_answer(error, told(error.api_message or f"status {error.status_code}"), creating=creating)
    cause = (error.__cause__ or error) if isinstance(error, anthropic.APIConnectionError) else error
    unread = f"it does not answer like Anthropic's API ({cause})" if isinstance(cause, UNREADABLE) else None
    return unanswered(
        cause, told(unread or str(cause) or type(cause).__name__), creating, is_unread=unread is not None
    )


def _of_answer(error: anthropic.APIStatusError, message: str, *, creating: bool) -> OrchError:
    status = error.status_code
    code = code_of(error)
    # An account without credit shows only in the words of a bad request.
    no_credit = status == 400 and classify(status, code, None, message).disposition is Disposition.STOP
    names_field = names_request_field(ProviderError(status, code, message=error.api_message))
    if no_credit or is_account(status, code, names_field=names_field):
        return AccountError(message, status=status, code=code, hint=_ACCOUNT_HINT)
    if status in _BUSY_STATUSES:
        return BackendBusy(message, status=status, code=code, retry_after=asked_pause(error.response.headers))
    if status >= 500 or status == 408:
        return Uncertain(message) if creating else BackendError(message)
    if status < 400:
        return unanswered(error, message, creating, is_unread=True)
    if is_not_its_own(error):
        return NotSent(message, hint="check base_url")
    return BackendRefused(message, status=status, code=code)


def is_not_its_own(error: anthropic.APIStatusError) -> bool:
    """True if a refusal is not from the API, whose own refusals have an error object with a type.

    A gateway in front may refuse what is too large.
    """
    return error.type is None and error.status_code != _TOO_LARGE


def code_of(error: anthropic.APIStatusError) -> str | None:
    """Return the provider's code for the cause, or None."""
    code = error.error_code or error.type
    return None if code is None else lenient.text(code)
