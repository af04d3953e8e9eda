"""What was seen of backends, as the planner's options see it: shards and progress in, forecasts out. Pure.

All of it is derived from the times that shards carry, so it holds after a crash and for every process alike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from orchestrator.core.durations import MINUTE
from orchestrator.core.model import Job, JobId
from orchestrator.core.shards import AHEAD, AT_BACKEND, Shard, ShardState
from orchestrator.core.turns import due_at, turn
from orchestrator.core.wire import BatchStatus
from orchestrator.policy import forecast
from orchestrator.policy.forecast import Assumed, Pace, SeenBatch, Speeds, Turnaround, Wait
from orchestrator.policy.planner.batch_shares import BatchShare
from orchestrator.policy.planner.stints import OUTPUT_WEIGHT, Sight, starts_of, stints_of, unfinished
from orchestrator.policy.planner.types import SLIPS, BatchOption, Claim

ASSUMED_CANCEL, OWN_CANCEL = 600.0, 60.0
"""Seconds until the rows of a cancelled batch are free, at a provider and at our own server."""
ASSUMED_START, QUICK_START = 60.0, 10.0
"""Seconds until the first row, of an engine and of an API that always runs."""
ASSUMED_FINISH, FINISH_ROWS = 60.0, 500.0
"""Seconds from the end of the last batch until a job is finished, as assumed, and rows that take a second more."""
SILENT_AFTER = 15 * MINUTE
"""A provider that has not answered for so long is silent: batches are polled more often than that."""
LET_GO = 2 * MINUTE
"""Seconds until rows are free that are at a silent provider: nobody waits for more than its last word."""
TODAY = timedelta(hours=12)
"""What is longer ago is another night."""
NEVER_SEEN = 0.05
"""P(a cancel takes far longer than planned) at a provider where none was seen; with each that was, the less."""
SURE, LIKELY = 0.99, 0.95
"""What a finish, and a cancel or a start, do not exceed as they are planned."""
FAR = 1.5
"""What takes so many times as long as planned comes too late."""


class Asker(Struct, frozen=True):
    """The job that a forecast is for; the rows of the jobs in `first` go before its own."""

    job_id: JobId
    series: str
    first: frozenset[JobId] = frozenset()


def goes_first(jobs: Iterable[Job], mine: Job, now: datetime | None = None) -> frozenset[JobId]:
    """The jobs whose rows an engine does before those of mine, by when their batches are due there `now`.

    Without it, as their first batches are.
    """

    def place(job: Job) -> tuple[float, float]:
        made = job.created_at
        return turn(due_at(job.deadline_at, now or made).timestamp(), made.timestamp())

    return frozenset(job.id for job in jobs if job.id != mine.id and place(job) <= place(mine))


def last_used(sight: Sight, now: datetime) -> datetime | None:
    """When a backend had rows last, None where it never had any."""
    return max((now if one.state in AT_BACKEND else one.ended_at or now for one in sight.shards), default=None)


# --- batches


def turnaround(sight: Sight, rows: int, now: datetime) -> Turnaround:
    """How long a batch of so many rows takes there."""
    return forecast.turnaround(list(_seen(sight.shards, now)), rows=rows, at=now)


def _seen(shards: Sequence[Shard], now: datetime) -> Iterator[SeenBatch]:
    for shard in shards:
        if shard.submitted_at is None or shard.provider_status == BatchStatus.FAILED:
            continue
        by_itself = (
            shard.ended_at is not None
            and shard.rerouted_at is None
            and shard.provider_status == BatchStatus.COMPLETED
        )
        seconds = ((shard.ended_at or now) - shard.submitted_at).total_seconds()
        if by_itself and shard.took_seconds is not None:
            # Where nobody looked for hours, what we saw says nothing of the provider.
            seconds = min(seconds, shard.took_seconds + SILENT_AFTER)
        yield SeenBatch(shard.submitted_at, max(1.0, seconds), by_itself, shard.rows)


def leaving(shards: Sequence[Shard], now: datetime) -> float:
    """Seconds until the rows of a hosted batch are free if it is cancelled now."""
    return LET_GO if silence(shards, now) else cancel_seconds(shards, now)


def cancel_seconds(shards: Sequence[Shard], now: datetime, assumed: float = ASSUMED_CANCEL) -> float:
    """From the decision to take a batch back until its rows are free, as it is at the longest (95 %)."""
    return forecast.wait_quantile(_cancels(shards), assumed=assumed, at=now, chance=LIKELY, smoothed=True)


def usual_cancel(shards: Sequence[Shard], now: datetime) -> float:
    """What half of all cancels of a hosted batch do not exceed."""
    if silence(shards, now):
        return LET_GO
    return forecast.wait_quantile(_cancels(shards), assumed=ASSUMED_CANCEL, at=now, chance=0.5, smoothed=True)


def slips(shards: Sequence[Shard], now: datetime, seconds: float) -> float:
    """P(it takes far longer than so many seconds)."""
    seen = _cancels(shards)
    return (
        SLIPS
        + NEVER_SEEN / (1 + len(seen))
        + forecast.exceedance(FAR * seconds, seen, assumed=ASSUMED_CANCEL, at=now)
    )


def _cancels(shards: Sequence[Shard]) -> list[Wait]:
    """How long cancels took. One that was done before it was cancelled says nothing of that, and those of an hour are
    slow together."""
    by_hour: dict[datetime, Wait] = {}
    for shard in shards:
        over = shard.collected_at or shard.ended_at
        if shard.rerouted_at is None or over is None or shard.provider_status == BatchStatus.COMPLETED:
            continue
        wait = Wait(shard.rerouted_at, (over - shard.rerouted_at).total_seconds())
        hour = shard.rerouted_at.replace(minute=0, second=0, microsecond=0)
        if hour not in by_hour or wait.seconds > by_hour[hour].seconds:
            by_hour[hour] = wait
    return list(by_hour.values())


def silence(shards: Sequence[Shard], now: datetime) -> float:
    """For how many seconds the provider has not answered, 0 where it is asked and answers."""
    asked = [shard.seen_at or shard.submitted_at for shard in shards if shard.state is ShardState.SUBMITTED]
    last = max((at for at in asked if at is not None), default=now)
    silent = (now - last).total_seconds()
    return silent if silent >= SILENT_AFTER else 0.0


def claims(
    others: Mapping[JobId, Sequence[Shard]], deadlines: Mapping[JobId, datetime], options: Iterable[BatchOption],
    synchronous: frozenset[str], now: datetime,
) -> tuple[Claim, ...]:  # fmt: skip
    """What jobs that go first may come to need of the synchronous routes, by where their rows are now."""
    by_name = {option.backend: option for option in options}
    rows: dict[str, int] = defaultdict(int)
    stays: dict[str, float] = defaultdict(lambda: 1.0)
    for job_id, shards in others.items():
        for shard in shards:
            left = unfinished(shard, shard.rows) if shard.state in AHEAD else 0
            if not left:
                continue
            rows[shard.backend] += left
            option = by_name.get(shard.backend)
            if option is not None and job_id in deadlines:
                age = 0.0 if shard.submitted_at is None else (now - shard.submitted_at).total_seconds()
                left_time = max(0.0, (deadlines[job_id] - now).total_seconds() - option.cancel_seconds)
                stays[shard.backend] = min(
                    stays[shard.backend], BatchShare(option, left, max(0.0, age)).by(left_time)
                )
    return tuple(
        Claim(source, many, 0.0 if source in synchronous else 1.0 - stays[source])
        for source, many in sorted(rows.items())
    )


# --- between an order and its effect


def finish_seconds(jobs: Iterable[tuple[int, datetime, datetime]], rows: int, now: datetime) -> float:
    """From the last answer to the finished job, at the longest. `jobs` before it: (rows, last batch ended, ended)."""
    waits = [Wait(last, (end - last).total_seconds() / _finish(many)) for many, last, end in jobs if end >= last]
    return _finish(rows) * forecast.wait_quantile(waits, assumed=1.0, at=now, chance=SURE)


def _finish(rows: int) -> float:
    return ASSUMED_FINISH + rows / FINISH_ROWS


def start_seconds(sight: Sight, now: datetime, assumed: float = ASSUMED_START) -> float:
    """From the time that rows are sent until the first is done, where nothing else was there: the engine loads."""
    waits = [Wait(sent, (first - sent).total_seconds()) for sent, first in starts_of(sight) if first is not None]
    return forecast.wait_quantile(waits, assumed=assumed, at=now, chance=LIKELY)


# --- paces


def speeds(sight: Sight, series: str, now: datetime, weight: float = OUTPUT_WEIGHT) -> Speeds:
    """What earlier nights tell of an engine; `weight` is that of tokens of answers (see `work_of`)."""
    return forecast.learn(stints_of(sight, series, start_seconds(sight, now), now, weight=weight), now)


def pace(
    sight: Sight,
    asker: Asker,
    assumed: Assumed,
    tokens: float,
    now: datetime,
    known: Speeds | None = None,
    *,
    starts: float = ASSUMED_START,
    weight: float = OUTPUT_WEIGHT,
    history: Sight | None = None,
) -> Pace:
    """How fast an engine does the asker's rows, each of which is about so many `tokens` of work (see `work_of`).

    `known` is what earlier nights tell, where that was asked for before. `history` is what was seen of rows for the
    asker's models, where the backend has others too.
    """
    start = start_seconds(sight, now, starts)
    there = [shard for shard in sight.shards if shard.state in AT_BACKEND]
    if known is None:
        known = speeds(history or sight, asker.series, now, weight)
    return forecast.pace(
        known,
        assumed,
        today=stints_of(history or sight, asker.series, start, now, since=now - TODAY, weight=weight),
        now=now,
        tokens=tokens,
        ahead=float(sum(unfinished(shard, shard.rows) for shard in there if shard.job_id in asker.first)),
        start=0.0 if any(shard.first_at is not None for shard in there) else _still_to_start(there, start, now),
    )


def _still_to_start(there: Sequence[Shard], start: float, now: datetime) -> float:
    sent = min((shard.submitted_at for shard in there if shard.submitted_at is not None), default=now)
    return max(0.0, start - (now - sent).total_seconds())


# --- what comes later


def reask_share(runs: Sequence[tuple[int, int]], prior: float = 200.0) -> float:
    """Which part of rows is asked once more, by earlier runs, the newest first: (rows answered, of them again).

    So many rows of one's own weigh as much as the `prior` ones.
    """
    rows, again = prior, prior * _ASSUMED_REASK_SHARE
    for newer, (answered, more) in enumerate(runs):
        weight = _FADE**newer
        rows, again = rows + weight * answered, again + weight * more
    return again / rows


def reached_share(runs: Sequence[tuple[int, int]], rows: int) -> tuple[float, float]:
    """Which part of rows goes on to a stronger model, as is expected, and what so many `rows` do not exceed (95 %).

    By earlier runs, the newest first: (rows answered, of them on to that model).
    """
    share = reask_share(runs, _PRIOR_REACHED)
    seen = max((reached / answered for answered, reached in runs if answered), default=share)
    chance = 1.645 * math.sqrt(share * (1.0 - share) / max(1, rows))
    return share, min(1.0, max(share + chance, seen))


_ASSUMED_REASK_SHARE, _FADE = 0.01, 0.8
_PRIOR_REACHED = 20.0
