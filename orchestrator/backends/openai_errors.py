"""What a failed call to an OpenAI-compatible API means: above all, what it may have left behind. Pure."""

from __future__ import annotations

import httpx2

from orchestrator.backends import lenient
from orchestrator.backends.openai_api import ApiRefusal
from orchestrator.core.clock import now
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NotSent,
    OrchError,
    StorageError,
    Uncertain,
)
from orchestrator.core.refused_fields import ProviderError, names_request_field
from orchestrator.core.retry_after import retry_after
from orchestrator.policy.row_errors import is_account

UNREADABLE = (ValueError, TypeError, AttributeError)
"""What reading an answer raises that is not JSON, or of another shape."""

_NEVER_LEFT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_COLLECTIONS = ("/files", "/batches", "/models")
_LONGEST_DETAIL = 500
_INSUFFICIENT_STORAGE = 507
_TOO_LARGE = 413
LONGEST_RETRY = 86_400.0
"""Seconds that a provider may ask to be left alone: no quota is of more than a day."""


def meaning(error: Exception, what: str, *, creating: bool, secret: str) -> OrchError:
    """Which of our errors a failed call is; `what` says what cannot be done, and by whom.

    `creating` is the one call that costs money: where it may have been carried out, that is Uncertain. The `secret`
    never stands in a message, whatever the provider's own says.
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
    """Which of our errors a call without an answer is, or one whose answer cannot be read."""
    if is_unread:
        return Uncertain(message) if creating else BackendError(message, hint="check base_url")
    if isinstance(cause, _NEVER_LEFT):
        return NotSent(message)
    return Uncertain(message) if creating else BackendError(message)


def _of_answer(error: ApiRefusal, message: str, *, creating: bool) -> OrchError:
    status, code, after = error.status, code_of(error), asked_pause(error.headers)
    if status == _INSUFFICIENT_STORAGE:
        return StorageError(message, hint="free disk space, then run the same command again")
    if is_account(status, code, error.kind, names_field=_names_field(error)):
        hint = "check the key and the account's credit; `orch doctor` tests it again"
        return AccountError(message, status=status, code=code, hint=hint)
    # A gateway says 503 too for a call whose answer it lost; who asks to come again has not carried it out.
    if status == 429 or (status == 503 and not (creating and after is None)):
        return BackendBusy(message, status=status, code=code, retry_after=after)
    if status >= 500 or status == 408 or (creating and status == 409):
        return Uncertain(message) if creating else BackendError(message)
    if status < 400:
        return unanswered(error, message, creating, is_unread=True)
    if is_not_its_own(error):
        return NotSent(message, hint="check base_url")
    return BackendRefused(message, status=status, code=code, retry_after=after)


def _names_field(error: ApiRefusal) -> bool:
    param = None if error.param is None else lenient.text(error.param)
    return names_request_field(ProviderError(error.status, code_of(error), error.kind, param, error.said))


def is_not_its_own(error: ApiRefusal) -> bool:
    """Whether a refusal is not the API's: one without an error object is a gateway's, or there is no such API at all.

    A file that is too large may be refused by whoever stands before it.
    """
    if not error.said:
        return error.status != _TOO_LARGE
    is_collection = error.path.rstrip("/").endswith(_COLLECTIONS)
    return error.status in (404, 405) and is_collection and error.code is None and error.param is None


def code_of(error: ApiRefusal) -> str | None:
    """The provider's word for the cause, None where it has none."""
    return None if error.code is None else lenient.text(error.code)


def asked_pause(headers: httpx2.Headers) -> float | None:
    """The seconds that an answer asks to wait, a day at most; None where it does not say."""
    return retry_after(headers.get, now(), most=LONGEST_RETRY)
