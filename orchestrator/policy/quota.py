"""Quotas: may the next shard be sent, or does it wait for room at its backend? Pure.

A full quota is not a failure: shards that do not fit wait. A refusal for lack of room costs no attempt, and shows how
much room the backend has. All tokens here are prompt tokens of one model at one backend. Their number is as near to
the backend's own count as orch can estimate.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.counts import number_of
from orchestrator.core.durations import spread

LEARNED_FOR = timedelta(days=1)
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 1800.0
SMALL_SHARD = 100_000
"""Shard size, in tokens, that orch plans for a small limit of enqueued tokens, if 90 % of the limit allows it.

A limit above four times this size gets larger shards: a quarter of the limit (`max_shard_tokens`).
"""

FURTHEST_OFF = 4.0
"""Largest factor by which our token estimates are assumed to be wrong."""


class InFlight(Struct, frozen=True):
    """Our use of a backend: tokens and rows of one model, and batches of any model created in the last hour."""

    tokens: int = 0
    rows: int = 0
    batches_last_hour: int = 0


class LearnedLimit(Struct, frozen=True):
    """Learned limits of a model at a backend.

    `enqueued_tokens` holds for a day from `learned_at`, `max_rows` forever. Nothing is sent before `hold_until`.
    `strikes` counts the pauses since the last accepted shard. `reason` describes the last refusal.
    """

    backend: str
    model: str
    enqueued_tokens: int | None = None
    max_rows: int | None = None
    learned_at: datetime | None = None
    hold_until: datetime | None = None
    strikes: int = 0
    reason: str = ""


class Split(Struct, frozen=True):
    """Verdict on a shard that can never fit: its rows need smaller shards. `reason` says why."""

    reason: str


def few_rows(least: int, rows: int) -> str:
    """Return the message for too few rows for a batch."""
    return f"its batches take at least {number_of(least, 'row')} of one model, and there are only {rows:,}"


def current(learned: LearnedLimit, now: datetime) -> LearnedLimit:
    """Return the learned limit without its expired part. Quotas change, so orch learns the token limit anew each
    day.
    """
    if learned.learned_at is not None and now < learned.learned_at + LEARNED_FOR:
        return learned
    return replace(learned, enqueued_tokens=None, learned_at=None)


def effective(declared: int | None, learned: int | None) -> int | None:
    """Return the lower of the declared and the learned limit, or None if there is neither."""
    return min((limit for limit in (declared, learned) if limit is not None), default=None)


def max_shard_tokens(limit: int) -> int:
    """Return the planned size of a shard, in tokens, for a limit of enqueued tokens.

    For a large limit, the size is a quarter of the limit, so that the next shard can be sent while others run. If a
    quarter is less than `SMALL_SHARD`, the size is `SMALL_SHARD`, because a handful of rows is not a batch. It is
    then at most 90 % of the limit: a tenth stays free, because our count differs from the backend's.
    """
    return max(1, limit // 4, min(limit * 9 // 10, SMALL_SHARD))


def correction(estimated: int, told: int) -> float:
    """Return the factor that corrects our token estimates. `told` is the backend's own count for the rows
    estimated.
    """
    if estimated <= 0 or told <= 0:
        return 1.0
    return min(FURTHEST_OFF, max(1 / FURTHEST_OFF, told / estimated))


def hold(
    tokens: int,
    rows: int,
    *,
    model: str,
    limit: int | None,
    batches_per_hour: int | None,
    in_flight: InFlight,
    learned: LearnedLimit,
    now: datetime,
) -> str | Split | None:
    """Return why a shard waits, or a `Split` if it must be split, or None if it may be sent.

    `limit` and `batches_per_hour` are the backend's declared limits. `learned` must be the result of `current`.
    """
    if learned.hold_until is not None and now < learned.hold_until:
        return f"{learned.reason}; retried after {learned.hold_until:%H:%M} UTC"
    if batches_per_hour is not None and in_flight.batches_last_hour >= batches_per_hour:
        return f"queued behind quota: hourly limit of {number_of(batches_per_hour, 'batch')} reached"
    limit = effective(limit, learned.enqueued_tokens)
    if limit is None or in_flight.tokens + tokens <= limit:
        return None
    if tokens > limit and rows > 1:
        return Split(
            f"{amount(tokens)} tokens of {model} in one batch, but only {amount(limit)} may be enqueued: it is split"
        )
    if in_flight.rows == 0:
        # A single row above the limit cannot be cut: send the row, whose outcome is then the backend's refusal.
        return None
    return (
        f"queued behind quota: {amount(in_flight.tokens)} of {amount(limit)} tokens of {model} are enqueued, "
        f"{amount(tokens)} more do not fit"
    )


def refused(
    learned: LearnedLimit, *, limit: int | None, in_flight_tokens: int, shard_tokens: int, reason: str, now: datetime
) -> LearnedLimit:
    """Return the learned limit after a backend had no room for a shard beside our tokens in flight.

    `limit` is the limit that the backend stated, or None. If we have tokens in flight and the shard would exceed a
    stated limit with them, no pause is needed: `hold` respects the limit. In all other cases, a pause begins. Other
    programs may use the quota, or the backend may count more tokens than orch does.

    If no limit is stated and we have tokens in flight, the learned limit is 90 % of their sum with the shard's
    tokens. It is never below the tokens in flight, because the backend accepted them.
    """
    total = in_flight_tokens + shard_tokens
    if limit is not None:
        learned = replace(learned, enqueued_tokens=limit, learned_at=now)
        if in_flight_tokens and total > limit:
            return replace(learned, reason=f"queued behind quota: {reason}")
    elif in_flight_tokens:
        learned = replace(learned, enqueued_tokens=max(in_flight_tokens, total * 9 // 10), learned_at=now)
    ours = f"{amount(in_flight_tokens)} tokens" if in_flight_tokens else "nothing"
    return wait(learned, f"queued behind quota: {reason} ({ours} enqueued by us)", None, now)


def wait(learned: LearnedLimit, reason: str, retry_after: float | None, now: datetime) -> LearnedLimit:
    """Return the learned limit with a pause. The first pause is a minute; each further pause doubles, up to half an
    hour.

    `retry_after` is the backend's own minimum in seconds, or None. A fifth of the pause is random, so that clients
    refused together do not return together.
    """
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(learned.strikes, 10))
    seconds = max(retry_after or 0.0, spread(pause, f"{reason} {now.isoformat()}"))
    return replace(learned, hold_until=now + timedelta(seconds=seconds), strikes=learned.strikes + 1, reason=reason)


def accepted(learned: LearnedLimit) -> LearnedLimit:
    """Return the learned limit after the backend accepted a shard. Pauses start over, and the limit stays."""
    return replace(learned, hold_until=None, strikes=0, reason="")


def amount(count: int) -> str:
    """Format a number of tokens: `900`, `30k`, `1.95M`, `2B`."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (1000, "k")):
        # From here on, three digits would round up to 1,000, which is 1 of the larger unit.
        if count >= size * 0.9995:
            shown = count / size
            digits = 2 if shown < 9.995 else 1 if shown < 99.95 else 0
            text = f"{shown:.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if digits else text}{unit}"
    return str(count)
