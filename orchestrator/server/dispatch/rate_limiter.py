"""Spaces requests evenly to stay within an upstream's published rates, corrected by its answers. Pure.

Each request occupies a time slot given by the even rate. The next request is sent only after the slot. So no minute
has more requests than the limit. A minute may exceed the token limit by at most one row, because a row's tokens are
known only afterwards. There is no burst at the start, and a wake-up that is up to SLACK seconds late costs nothing.

Headers of answers (`x-ratelimit-*`, `anthropic-ratelimit-*`) correct the rates, since others may use the same
account. A 429 stops sending for as long as the answer says, or for growing pauses. Times are in seconds of the
caller's clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

MINUTE = 60.0
SLACK = 0.25
LONGEST_HOLD = 120.0
"""Maximum pause, in seconds, that an upstream's header can cause. After the pause, one row is sent as a test."""
LONGEST_PAUSE = 60.0
LONGEST_TEXT = 100
"""Maximum characters of a time in a header. On endless digits, the pattern would backtrack for too long."""
LEAST_TOLD = 1.0
"""Minimum stated limit per minute. Lower stated limits are ignored."""

_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|d|h|m|s)")
_FAMILIES = ("x-ratelimit-{part}-{what}", "anthropic-ratelimit-{what}-{part}")


class AnnouncedRate(Struct, frozen=True):
    """One rate as stated in an answer: the limit, the amount left, and the seconds until the full limit is
    available.
    """

    limit: float | None = None
    remaining: float | None = None
    reset: float | None = None


class Standings(Struct, frozen=True):
    """All rates stated in one answer."""

    requests: AnnouncedRate
    tokens: AnnouncedRate


class Ticket(Struct, frozen=True):
    """The tokens counted for a request, and the running totals including this request."""

    tokens: int
    requests_by_then: float
    tokens_by_then: float


class _Limit:
    """A limit per minute: the lower of the configured and the stated limit, or None if neither is known."""

    __slots__ = ("_set", "_told", "counted", "free_at")

    def __init__(self, per_minute: float | None) -> None:
        self.counted = 0.0
        self.free_at = -math.inf
        """Time at which the requests counted so far no longer use the limit."""
        self._set = per_minute
        self._told: float | None = None

    @property
    def per_minute(self) -> float | None:
        known = [limit for limit in (self._set, self._told) if limit is not None]
        return min(known, default=None)

    def count(self, now: float, amount: float) -> None:
        self.counted += amount
        if (limit := self.per_minute) is not None:
            seconds = _seconds(amount, limit)
            if self._set is None:
                seconds = min(seconds, LONGEST_HOLD)
            self.free_at = max(self.free_at, now - SLACK) + seconds

    def correct(self, more: float) -> None:
        """Add a difference to an earlier count. An absurdly large usage delays rows by at most LONGEST_HOLD."""
        if (limit := self.per_minute) is not None:
            self.free_at += min(_seconds(more, limit), LONGEST_HOLD)

    def told(self, now: float, said: AnnouncedRate, since: float, amount: float) -> None:
        """Apply an answer's figures. `since` is the amount counted after its request; `amount` is for the next
        request.
        """
        stated = said.limit if said.limit is not None and said.limit >= LEAST_TOLD else None
        if stated is not None:
            if self.per_minute is None:
                self.free_at = now  # unused allowance from before the limit was known is lost
            self._told = stated
        if said.remaining is None or (limit := self.per_minute) is None:
            return
        missing = amount - (said.remaining - since)
        if missing <= 0:
            return
        per_second = limit / MINUTE
        if said.reset and stated is not None and stated > said.remaining:
            per_second = (stated - said.remaining) / said.reset
        hold = missing / per_second if per_second > 0 else LONGEST_HOLD
        self.free_at = max(self.free_at, now + min(LONGEST_HOLD, hold))


class RateLimiter:
    """Decides when the next row may go to an upstream. If a limit is None, headers may supply it."""

    def __init__(self, requests_per_minute: int | None = None, tokens_per_minute: int | None = None) -> None:
        self._requests = _Limit(requests_per_minute)
        self._tokens = _Limit(tokens_per_minute)
        self._held_until = -math.inf
        self._refused_at = -math.inf
        self._refusals = 0

    @property
    def requests_per_minute(self) -> float | None:
        return self._requests.per_minute

    @property
    def tokens_per_minute(self) -> float | None:
        return self._tokens.per_minute

    def wait(self, now: float) -> float:
        """Return the seconds until the next row may go; 0 if it may go now."""
        return max(0.0, self._requests.free_at - now, self._tokens.free_at - now, self._held_until - now)

    def state(self, now: float) -> dict[str, Any]:
        """Return the current limits, and the seconds until a row may go, as JSON values."""
        return {
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_minute": self.tokens_per_minute,
            "wait_seconds": round(self.wait(now), 1),
        }

    def take(self, now: float, tokens: int) -> Ticket:
        """Count a request sent now with about `tokens` tokens. Requests sent without waiting also count."""
        self._requests.count(now, 1)
        self._tokens.count(now, tokens)
        return Ticket(tokens, self._requests.counted, self._tokens.counted)

    def settle(self, ticket: Ticket, tokens: int) -> None:
        """Correct a request's count to the tokens that it actually used."""
        self._tokens.correct(tokens - ticket.tokens)

    def told(self, now: float, ticket: Ticket, said: Standings) -> None:
        """Apply the rates that the answer to a request states."""
        self._requests.told(now, said.requests, self._requests.counted - ticket.requests_by_then, 1)
        since = self._tokens.counted - ticket.tokens_by_then
        self._tokens.told(now, said.tokens, since, max(1, ticket.tokens))

    def refused(self, now: float, sent_at: float, retry_after: float | None, pause: float) -> None:
        """Record that the upstream refused a request sent at `sent_at` because of a rate limit (429).

        Nothing is sent for as long as the answer says, and for at least `pause` seconds. `pause` doubles with every
        refusal since the last good answer. Refusals of requests that were in flight together count as one.
        """
        if sent_at >= self._refused_at:
            self._refused_at = now
            self._refusals += 1
        grown = min(LONGEST_PAUSE, pause * 2 ** min(self._refusals - 1, 20))
        self._held_until = max(self._held_until, now + min(LONGEST_HOLD, max(retry_after or 0.0, grown)))

    def answered(self, sent_at: float) -> None:
        """Record that a request sent at `sent_at` was accepted."""
        if sent_at >= self._refused_at:
            self._refusals = 0


def read_standings(header: Callable[[str], str | None], now: datetime) -> Standings | None:
    """Return the rates that an answer's headers state, or None.

    `header` returns a header's text by its lower-case name. `now` is an aware datetime, for headers that give a time
    of day for the reset.
    """
    for family in _FAMILIES:
        requests, tokens = (_read_standing(family, what, header, now) for what in ("requests", "tokens"))
        if requests != _UNTOLD or tokens != _UNTOLD:
            return Standings(requests, tokens)
    return None


_UNTOLD = AnnouncedRate()


def _read_standing(family: str, what: str, header: Callable[[str], str | None], now: datetime) -> AnnouncedRate:
    limit, remaining, reset = (
        header(family.format(part=part, what=what)) for part in ("limit", "remaining", "reset")
    )
    return AnnouncedRate(_number(limit), _number(remaining), reset_seconds(reset, now))


def reset_seconds(text: str | None, now: datetime) -> float | None:
    """Parse the seconds until a reset: `1s`, `6m0s`, `120ms`, plain seconds or a timestamp (RFC 3339)."""
    if text is None or len(text) > LONGEST_TEXT:
        return None
    if (number := _number(text)) is not None:
        return number
    parts = _PART.findall(text)
    if parts and "".join(amount + unit for amount, unit in parts) == text:
        seconds = sum(float(amount) * _UNITS[unit] for amount, unit in parts)
        return seconds if math.isfinite(seconds) else None
    try:
        then = datetime.fromisoformat(text)
        then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
        return max(0.0, (then - now).total_seconds())
    except (ValueError, OverflowError):  # not a time, or a time beyond the calendar
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _seconds(amount: float, per_minute: float) -> float:
    """Return the seconds that an amount takes. A minute counts as SLACK seconds longer, because late sends may catch
    up by SLACK.
    """
    return amount * (MINUTE + SLACK) / per_minute
