"""What a failed call to an OpenAI-compatible API means: above all, what it may have left behind. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2
import openai

from orchestrator.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NotSent,
    OrchError,
    StorageError,
    Uncertain,
)

UNREADABLE = (ValueError, TypeError, AttributeError)
"""What the client raises for an answer that is no JSON, or of another shape: it reads them without a check."""

_NEVER_LEFT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_ACCOUNT_STATUSES = (401, 402, 403)
_ACCOUNT_CODES = frozenset(
    {
        "access_terminated",
        "account_deactivated",
        "authentication_error",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_quota",
        "invalid_api_key",
    }
)
_COLLECTIONS = ("/files", "/batches", "/models")
_LONGEST_DETAIL = 500
_INSUFFICIENT_STORAGE = 507


def meaning(error: Exception, what: str, *, creating: bool, secret: str) -> OrchError:
    """The error of ours that a failed call is; `what` says what cannot be done, and by whom.

    `creating` is the one call that costs money: where it may have been carried out, that is Uncertain. The `secret`
    never stands in a message, whatever the provider's own says.
    """

    def told(detail: str) -> str:
        return f"{what}: {detail.replace(secret, '[key]')[:_LONGEST_DETAIL]}"

    if isinstance(error, openai.APIStatusError):
        return _of_answer(error, told(said(error) or f"status {error.status_code}"), creating=creating)
    cause = (error.__cause__ or error) if isinstance(error, openai.APIConnectionError) else error
    unread = f"it answers as no Batch API does ({cause})" if isinstance(cause, UNREADABLE) else None
    return unanswered(
        cause, told(unread or str(cause) or type(cause).__name__), creating, is_unread=unread is not None
    )


def unanswered(cause: BaseException, message: str, creating: bool, *, is_unread: bool) -> OrchError:
    """The error of ours that a call without an answer is, or one whose answer cannot be read."""
    if is_unread:
        return Uncertain(message) if creating else BackendError(message, hint="is base_url right?")
    if isinstance(cause, _NEVER_LEFT):
        return NotSent(message)
    return Uncertain(message) if creating else BackendError(message)


def _of_answer(error: openai.APIStatusError, message: str, *, creating: bool) -> OrchError:
    status, after = error.status_code, retry_after(error.response.headers)
    if status == _INSUFFICIENT_STORAGE:
        return StorageError(message, hint="make room, then run the same command again")
    if status in _ACCOUNT_STATUSES or error.code in _ACCOUNT_CODES or str(error.type) in _ACCOUNT_CODES:
        hint = "is the key the right one, and has its account credit? `orch doctor` asks again"
        return AccountError(message, status=status, code=error.code, hint=hint)
    # A gateway says 503 too for a call whose answer it lost; who asks to come again has not carried it out.
    if status == 429 or (status == 503 and not (creating and after is None)):
        return BackendBusy(message, status=status, code=error.code, retry_after=after)
    if status >= 500 or status == 408 or (creating and status == 409):
        return Uncertain(message) if creating else BackendError(message)
    if status in (404, 405) and _is_wrong_address(error):
        return NotSent(message, hint="is base_url right?")
    return BackendRefused(message, status=status, code=error.code, retry_after=after)


def _is_wrong_address(error: openai.APIStatusError) -> bool:
    """Whether there is no such API at all: an answer that is not its own, or one that misses what is always there."""
    if not said(error):
        return True
    is_collection = error.request.url.path.rstrip("/").endswith(_COLLECTIONS)
    return is_collection and error.code is None and error.param is None


def said(error: openai.APIStatusError) -> str:
    """The message of an error object, empty where the answer has none."""
    return str(error.body.get("message") or "") if isinstance(error.body, dict) else ""


def retry_after(headers: httpx2.Headers) -> float | None:
    """The seconds that an answer asks to wait, None where it does not say; a date counts from the answer's own."""
    for name, seconds in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            given = float(headers[name]) * seconds
        except (KeyError, ValueError):
            continue
        # Neither endless nor no number at all: both compare as false here.
        return max(0.0, given) if given < 10**9 else None
    until, since = (date_of(headers.get(name)) for name in ("retry-after", "date"))
    return max(0.0, (until - since).total_seconds()) if until and since else None


def date_of(text: str | None) -> datetime | None:
    """An HTTP date as aware UTC; None where there is none."""
    try:
        at = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
