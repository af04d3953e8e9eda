"""Decides what happens to a row after one attempt: keep the answer, retry, or give up. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from orchestrator.core.error_body import read_error
from orchestrator.core.refusal_words import refuses_request


class End(StrEnum):
    ANSWERED = "answered"  # an HTTP answer of JSON; its status decides
    UNREACHABLE = "unreachable"  # no connection: says nothing about the row
    CUT = "cut"  # the connection was lost while the row was in flight
    TIMED_OUT = "timed_out"  # no answer within a request's timeout
    GARBLED = "garbled"  # an answer that is not JSON, or not HTTP
    ABORTED = "aborted"  # a good status, but the body says that it is not an answer, or not a complete one
    TOO_LONG = "too_long"  # an answer longer than the limit


class Action(StrEnum):
    KEEP = "keep"  # write the answer as the row's result
    RETRY = "retry"  # try again after `delay`
    WAIT = "wait"  # the upstream is at fault: try again when it is well, and count nothing
    LEAVE = "leave"  # the upstream refuses the account: pause it for a while, and count nothing
    GIVE_UP = "give_up"  # write an error row


ANSWER, KEEP = End.ANSWERED, Action.KEEP
"""Aliases used for every row. Access through the enum class takes as long as two calls."""


class UpstreamRefusal(StrEnum):
    """Refusals that only a person can resolve."""

    KEY = "key"
    ACCOUNT = "account"  # its credit or rights, or a key that only the message calls bad


def key_refusal(status: int) -> UpstreamRefusal | None:
    """Return KEY if a status means that the API key is refused, else None."""
    return UpstreamRefusal.KEY if status in (401, 403) else None


class RetryVerdict(Struct, frozen=True):
    """An action and its reason. `delay` is in seconds. `overload` tells the concurrency limiter to reduce the
    load.
    """

    action: Action
    reason: str = ""
    delay: float = 0.0
    overload: bool = False


class AttemptFault(StrEnum):
    """Kinds of failure of an attempt. Each kind has its own count of a row's tries."""

    OVERLOAD = "overload"
    SERVER_ERROR = "server_error"
    CUT = "cut"
    TIMED_OUT = "timed_out"
    GARBLED = "garbled"
    ABORTED = "aborted"


MAX_TRIES = {
    AttemptFault.OVERLOAD: 20,
    AttemptFault.SERVER_ERROR: 5,
    AttemptFault.CUT: 4,
    AttemptFault.TIMED_OUT: 3,
    AttemptFault.GARBLED: 4,
    AttemptFault.ABORTED: 4,
}
SHARED_FAULTS = frozenset({AttemptFault.OVERLOAD, AttemptFault.SERVER_ERROR, AttemptFault.ABORTED})
"""Faults with two possible causes: the upstream is down behind a gateway, or the upstream cannot handle the row."""
MAX_DELAY = 30.0
TRANSIENT = frozenset({408, 409, 425, 500, 502, 504, 520, 522, 524})
OVERLOAD = frozenset({429, 503, 529})
UNAVAILABLE = 503
"""The only overload status that may mean an outage. 429 and 529 come from a running server."""
GATEWAY = frozenset({502, 504, 520, 524})
"""Statuses of a gateway that lost its backend. The backend may still have done the work."""


def fault_of(end: End, status: int) -> AttemptFault | None:
    """Return the fault of an attempt, or None if the attempt succeeded or says nothing about the row."""
    match end:
        case End.ANSWERED:
            if status in OVERLOAD:
                return AttemptFault.OVERLOAD
            return AttemptFault.SERVER_ERROR if status in TRANSIENT or status >= 500 else None
        case End.UNREACHABLE | End.TOO_LONG:
            return None
        case End.CUT | End.TIMED_OUT | End.GARBLED | End.ABORTED:
            return AttemptFault(end)
    assert_never(end)


def leaves_doubt(end: End, status: int) -> bool:
    """True if an attempt without a result may still have been carried out, and billed."""
    match end:
        case End.UNREACHABLE:
            return False
        case End.ANSWERED:
            return status in GATEWAY
        case End.CUT | End.TIMED_OUT | End.GARBLED | End.ABORTED | End.TOO_LONG:
            return True
    assert_never(end)


def account_problem(status: int, body: bytes) -> str | None:
    """Return why an upstream refuses the account, or None. The reason does not quote the answer."""
    words = read_error(body)
    match status:
        case 401 if not refuses_request(status, words):
            return "the upstream refuses the API key (401)"
        case 402:
            return "the upstream asks for payment (402)"
        case 403 if not refuses_request(status, words):
            return "the upstream refuses the account (403)"
    word = words.no_credit_word
    return None if word is None else f"the upstream refuses the account: {word} ({status})"


def possible_account_problem(status: int, body: bytes) -> str | None:
    """Return why an upstream may refuse the account, or None. This is judged by its error message, which may also
    quote a row.
    """
    if not 400 <= status < 500:
        return None
    words = read_error(body)
    if words.says_bad_key:
        return f"the upstream refuses the API key ({status})"
    return f"the upstream refuses the account: no credit ({status})" if words.says_no_credit else None


def judge(
    end: End,
    *,
    status: int = 0,
    detail: str = "",
    retry_after: float | None = None,
    tries: int,
    base: float,
    paid: bool = False,
    account: str | None = None,
    is_refused: bool = False,
) -> RetryVerdict:
    """Judge the `tries`-th attempt (from 1) of a row that failed by this fault.

    `base` is the first delay in seconds. The overload of a `paid` upstream is due to capacity or a quota, so it is
    retried without limit. `account` is the `account_problem`, if the upstream refuses the account and not the row.
    `is_refused` is true if the answer refuses the request, whatever its status.
    """
    delay = min(MAX_DELAY, base * 2 ** min(tries - 1, 10))
    match end:
        case End.UNREACHABLE:
            return RetryVerdict(Action.WAIT, f"upstream unreachable: {detail}")
        case End.TOO_LONG:
            return RetryVerdict(Action.GIVE_UP, f"too long: {detail}")  # a retry would be too long again
        case End.CUT | End.TIMED_OUT | End.GARBLED | End.ABORTED:
            reason = f"{end.replace('_', ' ')}: {detail}"
            again = tries < MAX_TRIES[AttemptFault(end)]
            return RetryVerdict(Action.RETRY, reason, delay) if again else RetryVerdict(Action.GIVE_UP, reason)
        case End.ANSWERED:
            if account is not None:
                return RetryVerdict(Action.LEAVE, account)
            if is_refused:
                return RetryVerdict(Action.KEEP)
            return _judge_status(status, retry_after, tries, delay, paid)
    assert_never(end)


def _judge_status(status: int, retry_after: float | None, tries: int, delay: float, paid: bool) -> RetryVerdict:
    if key_refusal(status) is not None and not paid:
        # A key is the upstream's problem, never a single row's: failing every row because of it would waste the job.
        return RetryVerdict(Action.WAIT, f"upstream refuses the API key ({status})")
    if status in OVERLOAD:
        if paid or tries < MAX_TRIES[AttemptFault.OVERLOAD]:
            wait = delay if retry_after is None else retry_after
            return RetryVerdict(Action.RETRY, f"overloaded ({status})", wait, overload=True)
        return RetryVerdict(Action.KEEP, f"still overloaded ({status})")
    if (status in TRANSIENT or status >= 500) and tries < MAX_TRIES[AttemptFault.SERVER_ERROR]:
        return RetryVerdict(Action.RETRY, f"server error ({status})", delay if retry_after is None else retry_after)
    return RetryVerdict(Action.KEEP)
