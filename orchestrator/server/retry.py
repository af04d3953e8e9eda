"""What the end of one attempt means for its row: keep the answer, try again, or give up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never


class End(StrEnum):
    """How an attempt to have a row answered ended."""

    ANSWERED = "answered"  # an HTTP answer of JSON; its status decides
    UNREACHABLE = "unreachable"  # no connection: says nothing about the row
    CUT = "cut"  # the connection went away while the row was in it
    TIMED_OUT = "timed_out"  # no answer within the time a request may take
    GARBLED = "garbled"  # an answer that is no JSON, or not HTTP


class Action(StrEnum):
    """What to do with the row."""

    KEEP = "keep"  # write the answer as the row's result
    RETRY = "retry"  # try again after `delay`
    WAIT = "wait"  # the upstream is at fault: try again when it is well, and count nothing
    GIVE_UP = "give_up"  # write an error row


@dataclass(frozen=True, slots=True)
class Verdict:
    """An action and why; `overload` tells flow control that the upstream asked for less."""

    action: Action
    reason: str = ""
    delay: float = 0.0
    overload: bool = False


MAX_TRIES = {"overload": 20, "server_error": 5, End.CUT: 4, End.TIMED_OUT: 3, End.GARBLED: 4}
MAX_DELAY = 30.0
TRANSIENT = frozenset({408, 409, 425, 500, 502, 504, 520, 522, 524})
OVERLOAD = frozenset({429, 503, 529})


def judge(
    end: End, *, status: int = 0, detail: str = "", retry_after: float | None = None, tries: int, base: float
) -> Verdict:
    """The verdict on the `tries`-th attempt (from 1) of a row; `base` is the first delay in seconds.

    `tries` counts attempts that may have been the row's own fault; an upstream that was away is not among them.
    """
    delay = min(MAX_DELAY, base * 2 ** min(tries - 1, 10))
    match end:
        case End.UNREACHABLE:
            return Verdict(Action.WAIT, f"upstream unreachable: {detail}")
        case End.CUT | End.TIMED_OUT | End.GARBLED:
            reason = f"{end.replace('_', ' ')}: {detail}"
            again = tries < MAX_TRIES[end]
            return Verdict(Action.RETRY, reason, delay) if again else Verdict(Action.GIVE_UP, reason)
        case End.ANSWERED:
            return _judge_status(status, retry_after, tries, delay)
    assert_never(end)


def _judge_status(status: int, retry_after: float | None, tries: int, delay: float) -> Verdict:
    if status in (401, 403):
        # A key is the upstream's matter, never one row's: failing every row with it would waste the job.
        return Verdict(Action.WAIT, f"upstream refuses the API key ({status})")
    if status in OVERLOAD:
        if tries < MAX_TRIES["overload"]:
            wait = delay if retry_after is None else retry_after
            return Verdict(Action.RETRY, f"overloaded ({status})", wait, overload=True)
        return Verdict(Action.KEEP, f"still overloaded ({status})")
    if (status in TRANSIENT or status >= 500) and tries < MAX_TRIES["server_error"]:
        return Verdict(Action.RETRY, f"server error ({status})", delay if retry_after is None else retry_after)
    return Verdict(Action.KEEP)
