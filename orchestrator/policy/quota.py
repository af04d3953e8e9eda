"""May the next shard be sent, or does it wait for room at its backend? Pure: values in, a sentence out.

A quota is capacity, no failure: what does not fit waits, and a refusal for want of room costs no attempt and teaches
how much room there is. All tokens here are prompt tokens of one model at one backend, as near to the backend's own
count as we can tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from orchestrator.core.durations import spread

LEARNED_FOR = timedelta(days=1)
FIRST_PAUSE = 60.0
LONGEST_PAUSE = 1800.0
SMALL_SHARD = 100_000
"""Tokens below which a shard is not worth cutting further so that several fit into a limit."""

FURTHEST_OFF = 4.0
"""By what factor our estimate of tokens is taken to be wrong at most."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """What we have at the backend: of this model, and how many batches of any were made in the last hour."""

    tokens: int = 0
    rows: int = 0
    batches_last_hour: int = 0


@dataclass(frozen=True, slots=True)
class Learned:
    """What refusals have taught.

    `limit` in tokens holds for a day from `learned_at`; nothing is sent before `hold_until`. `strikes` counts the
    pauses since something was taken last; `reason` is for people.
    """

    limit: int | None = None
    learned_at: datetime | None = None
    hold_until: datetime | None = None
    strikes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Split:
    """A shard that never fits as it is: its rows are to be planned into smaller ones. `reason` is for people."""

    reason: str


def current(learned: Learned, now: datetime) -> Learned:
    """What of it still holds: quotas are raised and lowered, so a limit is found out again each day."""
    if learned.learned_at is not None and now < learned.learned_at + LEARNED_FOR:
        return learned
    return replace(learned, limit=None, learned_at=None)


def effective(declared: int | None, learned: int | None) -> int | None:
    """The limit that counts, of the one declared and the one learned; None where there is neither."""
    return min((limit for limit in (declared, learned) if limit is not None), default=None)


def max_shard_tokens(limit: int) -> int:
    """How large shards are planned where so many tokens may wait.

    A quarter, so that the next one goes while others run; of a small limit nearly all, since a handful of rows is no
    batch, but for a tenth that stays free because our count is not the backend's.
    """
    return max(1, limit // 4, min(limit * 9 // 10, SMALL_SHARD))


def correction(estimated: int, told: int) -> float:
    """What to multiply our estimates by, from tokens as estimated and as the backend told them for the same rows."""
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
    learned: Learned,
    now: datetime,
) -> str | Split | None:
    """What a shard of so many tokens and rows waits for, or that it has to be split; None where it may go.

    `limit` and `batches_per_hour` are what the backend declares to take; `learned` is to be `current`.
    """
    if learned.hold_until is not None and now < learned.hold_until:
        return f"{learned.reason}; retried after {learned.hold_until:%H:%M} UTC"
    if batches_per_hour is not None and in_flight.batches_last_hour >= batches_per_hour:
        return f"queued behind quota: hourly limit of {batches_per_hour:,} batches reached"
    limit = effective(limit, learned.limit)
    if limit is None or in_flight.tokens + tokens <= limit:
        return None
    if tokens > limit and rows > 1:
        return Split(
            f"{amount(tokens)} tokens of {model} in one batch, where {amount(limit)} may be enqueued: split smaller"
        )
    if in_flight.rows == 0:
        # A lone row larger than all that may wait: it cannot be cut, so the backend's answer to it is that row's.
        return None
    return (
        f"queued behind quota: {amount(in_flight.tokens)} of {amount(limit)} tokens of {model} are enqueued, "
        f"{amount(tokens)} more do not fit"
    )


def refused(
    learned: Learned, *, limit: int | None, in_flight_tokens: int, shard_tokens: int, reason: str, now: datetime
) -> Learned:
    """What is known after a backend had no room for a shard, beside what was in flight without it.

    `limit` is the one that it named. Where that explains the refusal, together with what was there, `hold` keeps to
    it and no pause is needed. Otherwise others use the quota, or the backend counts more than we do: pauses grow.
    Where it named none and something of ours is there, the limit is below the sum, and not below what it had taken.
    """
    total = in_flight_tokens + shard_tokens
    if limit is not None:
        learned = replace(learned, limit=limit, learned_at=now)
        if in_flight_tokens and total > limit:
            return replace(learned, reason=f"queued behind quota: {reason}")
    elif in_flight_tokens:
        learned = replace(learned, limit=max(in_flight_tokens, total * 9 // 10), learned_at=now)
    ours = f"{amount(in_flight_tokens)} tokens" if in_flight_tokens else "nothing"
    return wait(learned, f"queued behind quota: {reason} ({ours} of ours there)", None, now)


def wait(learned: Learned, reason: str, retry_after: float | None, now: datetime) -> Learned:
    """Send nothing for a while: a minute at first, twice as long each time, up to half an hour.

    `retry_after` is the least, in seconds, where the backend asked for it. A fifth is left to chance, so that those
    who were refused together do not come back together.
    """
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(learned.strikes, 10))
    seconds = max(retry_after or 0.0, spread(pause, f"{reason} {now.isoformat()}"))
    return replace(learned, hold_until=now + timedelta(seconds=seconds), strikes=learned.strikes + 1, reason=reason)


def accepted(learned: Learned) -> Learned:
    """What is known after the backend took a shard: pauses start over, a limit stays until its day is over."""
    return replace(learned, hold_until=None, strikes=0, reason="")


def amount(count: int) -> str:
    """A number of tokens as people say it: `900`, `30k`, `1.95M`, `2B`."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (1000, "k")):
        # From here on three digits round to one of the larger unit.
        if count >= size * 0.9995:
            shown = count / size
            digits = 2 if shown < 9.995 else 1 if shown < 99.95 else 0
            text = f"{shown:.{digits}f}"
            return f"{text.rstrip('0').rstrip('.') if digits else text}{unit}"
    return str(count)
