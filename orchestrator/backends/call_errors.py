"""Converts failed calls of a Batch API to our errors, by what the call may have left behind. Pure."""

from __future__ import annotations

from collections.abc import Callable

import httpx2

from orchestrator.backends import lenient
from orchestrator.backends.api import ApiRefusal
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

UNREADABLE = (ValueError, TypeError, AttributeError)
"""Errors from reading an answer that is not JSON or has an unexpected shape."""

_NEVER_LEFT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_COLLECTIONS = ("/files", "/batches", "/models")
_LONGEST_DETAIL = 500
_OWN_DISK = (507, "storage")
"""Status and code of our own server's refusal while its disk is full."""
_TOO_LARGE = 413
ACCOUNT_HINT = "check the key and the account's credit; `orch doctor` tests it again"
LONGEST_RETRY = 86_400.0
"""Longest pause, in seconds, that a provider may request: no quota period exceeds a day."""


OfAnswer = Callable[[ApiRefusal, str, bool], OrchError]
"""A function that returns our error, with this message, for a refused call.

The flag is true for a create, the call that costs money.
"""


def meaning(error: Exception, what: str, of_answer: OfAnswer, *, creating: bool, secret: str) -> OrchError:
    """Return our error for a failed call. `what` names the backend and the failed action.

    `creating` is true for the call that costs money. If that call may have been carried out, the error is Uncertain.
    The `secret` never appears in a message, even if the provider's own message contains it.
    """

    def told(detail: str) -> str:
        return f"{what}: {lenient.plain(detail.replace(secret, '[key]'))[:_LONGEST_DETAIL]}"

    if isinstance(error, ApiRefusal):
        return of_answer(error, told(error.said or f"status {error.status}"), creating)
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


def of_answer(error: ApiRefusal, message: str, creating: bool) -> OrchError:
    """Return our error for a refusal in OpenAI's shape; an `OfAnswer`."""
    status, code, after = error.status, code_of(error), asked_pause(error.headers)
    if (status, code) == _OWN_DISK:
        return NoRoom(message, hint="free disk space, then run the same command again")
    if is_account(status, code, error.kind, names_field=_is_about_request(error)):
        return AccountError(message, status=status, code=code, hint=ACCOUNT_HINT)
    # A gateway that lost an answer may send 503. If 503 has a requested pause, the call was not carried out.
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
    """True if a refusal does not come from the API: it has no error object, or the address has no API.

    Exception: a gateway's refusal of a file that is too large counts as the API's.
    """
    if not error.said:
        return error.status != _TOO_LARGE
    is_collection = error.path.rstrip("/").endswith(_COLLECTIONS)
    return error.status in (404, 405) and is_collection and error.code is None and error.param is None


def code_of(error: ApiRefusal) -> str | None:
    """Return the provider's code for the cause of a refusal, or None."""
    return None if error.code is None else lenient.text(error.code)


def asked_pause(headers: httpx2.Headers) -> float | None:
    """Return the pause that the server requests, in seconds, at most a day; None if it requests no pause."""
    return retry_after(headers.get, now(), most=LONGEST_RETRY)
