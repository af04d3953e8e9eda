"""The meaning of failed calls to Anthropic's API: above all, whether they may have created a batch. Pure."""

from __future__ import annotations

import anthropic
import msgspec

from orchestrator.backends import lenient
from orchestrator.backends.openai_errors import asked_pause, unanswered
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
