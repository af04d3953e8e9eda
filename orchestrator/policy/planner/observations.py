"""Conversion of observations of backends (shards and progress) to forecasts for the planner. Pure.

All forecasts are derived from times stored with shards. So they survive a crash and are the same in all processes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta

from msgspec import Struct

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.durations import MINUTE
from orchestrator.core.engine_order import due_at, turn
from orchestrator.core.model import Job, JobId
from orchestrator.core.shards import AHEAD, AT_BACKEND, Shard, ShardState
from orchestrator.policy import forecast
from orchestrator.policy.forecast import Assumed, Pace, SeenBatch, Speeds, Turnaround, Wait
from orchestrator.policy.planner.batch_shares import BatchShare
from orchestrator.policy.planner.stints import OUTPUT_WEIGHT, Sight, starts_of, stints_of, unfinished
from orchestrator.policy.planner.types import SLIPS, BatchOption, Claim

ASSUMED_CANCEL, OWN_CANCEL = 600.0, 60.0
"""Assumed seconds until the rows of a cancelled batch are free: at a provider, and at our own server."""
ASSUMED_START, QUICK_START = 60.0, 10.0
"""Assumed seconds until the first row is done: at an engine that has to start, and at an API that always runs."""
ASSUMED_FINISH, FINISH_ROWS = 60.0, 500.0
"""Assumed seconds from the end of the last batch to the finished job, and the number of rows that adds one second."""
SILENT_AFTER = 15 * MINUTE
"""Seconds without an answer after which a provider counts as silent. orch polls batches more often than this."""
GIVEN_UP = 2 * MINUTE
"""Seconds until rows are free at a provider that is silent or cannot cancel: orch does not wait for its answer."""
TODAY = timedelta(hours=12)
"""Observations older than this belong to another night."""
UNSEEN_SLIP = 0.05
"""P(a cancel takes far longer than planned) before any cancel was observed. It falls as 1 / (1 + count)."""
FINISH_QUANTILE, WAIT_QUANTILE = 0.99, 0.95
"""Quantiles used for planning: of the time to finish, and of cancels and starts."""
_UNSEEN_NIGHTS = 2.0
"""Weight of the priors, in nights.

The priors assume that late batches do not slow engines, and that no row is seen before a batch's end.
"""
_NIGHT_DECAY = 0.93
"""Each newer night multiplies the weight of all older ones by this."""
SLIP_FACTOR = 1.5
"""A cancel that takes this many times its planned time is too slow."""
CONFIRMED_BY = 20
"""Number of newest runs that can confirm an older cost above its p95.

The older cost is forgotten if these runs all exceed their p50 by less than half as much.
"""


class Asker(Struct, frozen=True):
    """The job that a forecast is for. Rows of the jobs in `first` are done before this job's rows.

    `series` is the job's file: jobs of the same file weigh more in the forecast.
    """

    series: str
    first: frozenset[JobId] = frozenset()


def goes_first(jobs: Iterable[Job], mine: Job, now: datetime | None = None) -> frozenset[JobId]:
    """Return the jobs whose rows an engine does before the rows of `mine`. The order follows the due times of
    batches.

    `now` is the time at which batches are sent. Without `now`, it is the time at which each job was created.
    """

    def place(job: Job) -> tuple[float, float]:
        created = job.created_at
        return turn(due_at(job.deadline_at, now or created).timestamp(), created.timestamp())

    return frozenset(job.id for job in jobs if job.id != mine.id and place(job) <= place(mine))


def last_used(sight: Sight, now: datetime) -> datetime | None:
    """Return the time at which a backend last had rows, or None if it never had any."""
    return max((now if one.state in AT_BACKEND else one.ended_at or now for one in sight.shards), default=None)


# --- batches


def turnaround(sight: Sight, rows: int, now: datetime) -> Turnaround:
    """Return the survival function of a batch of `rows` rows sent now."""
    return forecast.turnaround(list(_observed_batches(sight.shards, now)), rows=rows, at=now)


def _observed_batches(shards: Sequence[Shard], now: datetime) -> Iterator[SeenBatch]:
    for shard in shards:
        if shard.submitted_at is None:
            continue
        if shard.provider_status == BatchStatus.FAILED and shard.rerouted_at is None:
            continue  # a batch that was given up had run until then
        completed = (
            shard.ended_at is not None
            and shard.rerouted_at is None
            and shard.provider_status == BatchStatus.COMPLETED
        )
        known_until = silent_since(shard, now) or shard.ended_at or now
        seconds = (known_until - shard.submitted_at).total_seconds()
        if completed and shard.took_seconds is not None:
            # If orch did not poll for hours, the provider's own time counts.
            seconds = min(seconds, shard.took_seconds + SILENT_AFTER)
        yield SeenBatch(shard.submitted_at, max(1.0, seconds), completed, shard.rows)


def silent_since(shard: Shard, now: datetime) -> datetime | None:
    """Return the time of a silent provider's last report on a batch, or None if the provider is not silent.

    The batch may have ended after that report.
    """
    until = shard.ended_at or now
    return shard.seen_at if shard.seen_at and (until - shard.seen_at).total_seconds() >= SILENT_AFTER else None


def seconds_until_free(shards: Sequence[Shard], now: datetime) -> float:
    """Return the seconds until the rows of a hosted batch are free if it is cancelled now (95 % quantile)."""
    return GIVEN_UP if silence(shards, now) else cancel_seconds(shards, now)


def cancel_seconds(shards: Sequence[Shard], now: datetime, assumed: float = ASSUMED_CANCEL) -> float:
    """Return the 95 % quantile of the seconds from a cancel until its rows are free."""
    return forecast.wait_quantile(_cancel_waits(shards), assumed=assumed, at=now, chance=WAIT_QUANTILE, smoothed=True)


def median_cancel(shards: Sequence[Shard], now: datetime) -> float:
    """Return the median of the seconds from a cancel until its rows are free."""
    if silence(shards, now):
        return GIVEN_UP
    return forecast.wait_quantile(_cancel_waits(shards), assumed=ASSUMED_CANCEL, at=now, chance=0.5, smoothed=True)


def slips(shards: Sequence[Shard], now: datetime, seconds: float) -> float:
    """Return P(a cancel takes longer than `SLIP_FACTOR` times `seconds`, its planned time).

    If a cancel runs now, the result is the probability given the age of the oldest running cancel. Cancels of an hour
    are correlated, so this applies to all of them.
    """
    if silence(shards, now):
        return SLIPS  # orch does not wait for a cancel at this provider, so the lengths of cancels do not matter
    seen = _cancel_waits(shards)

    def longer(wait: float) -> float:
        return SLIPS + UNSEEN_SLIP / (1 + len(seen)) + forecast.exceedance(wait, seen, assumed=ASSUMED_CANCEL, at=now)

    # Cancels of an hour are correlated: if a cancel still runs, others likely take as long.
    too_slow = SLIP_FACTOR * seconds
    return min(1.0, longer(too_slow) / min(1.0, longer(_cancel_age(shards, now))))


def _cancel_age(shards: Sequence[Shard], now: datetime) -> float:
    waits = (one.rerouted_at for one in shards if one.rerouted_at is not None and one.state is ShardState.SUBMITTED)
    return max(((now - at).total_seconds() for at in waits), default=0.0)


def _cancel_waits(shards: Sequence[Shard]) -> list[Wait]:
    """Return the longest observed cancel of each hour. Only the longest counts, because cancels of an hour are
    correlated.

    Batches that completed before their cancel do not count. Nor do batches given up at a silent provider.
    """
    by_hour: dict[datetime, Wait] = {}
    for shard in shards:
        over = shard.collected_at or shard.ended_at
        if shard.rerouted_at is None or over is None or shard.provider_status == BatchStatus.COMPLETED:
            continue
        if silent_since(shard, over) is not None:
            continue
        wait = Wait(shard.rerouted_at, (over - shard.rerouted_at).total_seconds())
        hour = shard.rerouted_at.replace(minute=0, second=0, microsecond=0)
        if hour not in by_hour or wait.seconds > by_hour[hour].seconds:
            by_hour[hour] = wait
    return list(by_hour.values())


def first_row_share(shards: Sequence[Shard]) -> float:
    """Return the mean share of a batch's run time until its first row is seen done.

    Only the largest share of each night counts. A prior assumes that no row is seen before the end.
    """
    latest: dict[date, float] = {}
    for one in shards:
        if one.submitted_at and one.ended_at and not one.rerouted_at and one.provider_status == BatchStatus.COMPLETED:
            night, first = forecast.night_of(one.submitted_at), one.first_at or one.ended_at
            share = (first - one.submitted_at) / max(one.ended_at - one.submitted_at, timedelta(seconds=1))
            latest[night] = max(latest.get(night, 0.0), min(1.0, share))
    weights = [_NIGHT_DECAY**newer for newer in range(len(latest))]
    seen = sum(weight * latest[night] for weight, night in zip(weights, sorted(latest, reverse=True), strict=True))
    return (_UNSEEN_NIGHTS + seen) / (_UNSEEN_NIGHTS + sum(weights))


def paid_twice(shards: Sequence[Shard]) -> float:
    """Return the share of nights on which rows were billed twice.

    On these nights, orch rerouted a batch without waiting for its end.
    """
    nights, twice = set[date](), set[date]()
    for one in shards:
        if one.submitted_at is not None:
            night = forecast.night_of(one.submitted_at)
            nights.add(night)
            if one.rerouted_at is not None and one.provider_status == BatchStatus.FAILED:
                twice.add(night)
    return len(twice) / len(nights) if nights else 0.0


def late_nights(shards: Sequence[Shard]) -> frozenset[date]:
    """Return the nights on which a hosted batch expired, or was cancelled because it took too long."""
    expired = BatchStatus.EXPIRED
    late = (one.rerouted_at or (one.ended_at if one.provider_status == expired else None) for one in shards)
    return frozenset(forecast.night_of(at) for at in late if at is not None)


def slow_with(late: Mapping[str, Collection[date]], known: Speeds, rate: float) -> dict[str, tuple[float, float]]:
    """Return how slow an engine is while batches are late, by batch backend.

    Each value has P(the engine is slower than half of `rate` | batches there are late), and its lowest speed. That
    speed is a share of `rate`, which is in work per second. `late` has each backend's late nights. Backends without
    slow late nights are left out.
    """
    found = {}
    for backend, nights in late.items():
        rates = [known.by_date[night] for night in nights if night in known.by_date]
        if slow := [each / rate for each in rates if each < forecast.OUTAGE_LEVEL * rate]:
            found[backend] = len(slow) / (len(rates) + _UNSEEN_NIGHTS), min(slow)
    return found


def silence(shards: Sequence[Shard], now: datetime) -> float:
    """Return the seconds since a silent provider's last answer. Returns 0 if the provider answers, or has no
    batches.
    """
    asked = [shard.seen_at or shard.submitted_at for shard in shards if shard.state is ShardState.SUBMITTED]
    last = max((at for at in asked if at is not None), default=now)
    silent = (now - last).total_seconds()
    return silent if silent >= SILENT_AFTER else 0.0


def claims(
    others: Mapping[JobId, Sequence[Shard]], deadlines: Mapping[JobId, datetime], options: Iterable[BatchOption],
    synchronous: frozenset[str], now: datetime,
) -> tuple[Claim, ...]:  # fmt: skip
    """Return the rows that other jobs may move to the synchronous routes, grouped by the rows' present backend."""
    by_name = {option.backend: option for option in options}
    rows: dict[str, int] = defaultdict(int)
    in_time: dict[str, float] = defaultdict(lambda: 1.0)
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
                in_time[shard.backend] = min(
                    in_time[shard.backend], BatchShare(option, left, max(0.0, age)).by(left_time)
                )
    return tuple(
        Claim(source, count, 0.0 if source in synchronous else 1.0 - in_time[source])
        for source, count in sorted(rows.items())
    )


# --- between an order and its effect


def finish_seconds(jobs: Iterable[tuple[int, datetime, datetime]], rows: int, now: datetime) -> float:
    """Return the 99 % quantile of the seconds from the last answer until the job is finished.

    `jobs` are earlier jobs: (rows, end of the last batch, end of the job).
    """
    waits = [
        Wait(last, (end - last).total_seconds() / _assumed_finish(count)) for count, last, end in jobs if end >= last
    ]
    return _assumed_finish(rows) * forecast.wait_quantile(waits, assumed=1.0, at=now, chance=FINISH_QUANTILE)


def _assumed_finish(rows: int) -> float:
    return ASSUMED_FINISH + rows / FINISH_ROWS


def start_seconds(sight: Sight, now: datetime, assumed: float = ASSUMED_START) -> float:
    """Return the 95 % quantile of the seconds that an idle engine takes from receiving rows to its first finished
    row.
    """
    waits = [
        Wait(one.sent, (one.first - one.sent).total_seconds())
        for one in starts_of(sight)
        if one.first is not None and not one.is_doubted
    ]
    return forecast.wait_quantile(waits, assumed=assumed, at=now, chance=WAIT_QUANTILE)


# --- paces


def speeds(sight: Sight, series: str, now: datetime, weight: float = OUTPUT_WEIGHT) -> Speeds:
    """Return the speeds of an engine on earlier nights. `weight` is the work of an output token (see `work_of`)."""
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
    """Return the forecast of an engine's rate for rows of about `tokens` tokens of work (see `work_of`).

    `known` is the result of `speeds`, if already computed. If the backend serves several models, `history` has the
    observations of the asker's models only.
    """
    start = start_seconds(sight, now, starts)
    shards_there = [shard for shard in sight.shards if shard.state in AT_BACKEND]
    if known is None:
        known = speeds(history or sight, asker.series, now, weight)
    return forecast.pace(
        known,
        assumed,
        today=stints_of(history or sight, asker.series, start, now, since=now - TODAY, weight=weight),
        now=now,
        tokens=tokens,
        ahead=float(sum(unfinished(shard, shard.rows) for shard in shards_there if shard.job_id in asker.first)),
        start=0.0
        if any(shard.first_at is not None for shard in shards_there)
        else _remaining_start(shards_there, start, now),
        answered=_last_answer((history or sight).shards),
    )


def _last_answer(shards: Iterable[Shard]) -> datetime | None:
    """Return the last time at which a row is known to be done.

    That is the end of a completed shard, or the first row of another shard.
    """
    ends = (one.ended_at if one.provider_status == BatchStatus.COMPLETED else one.first_at for one in shards)
    return max((at for at in ends if at is not None), default=None)


def _remaining_start(shards_there: Sequence[Shard], start: float, now: datetime) -> float:
    sent = min((shard.submitted_at for shard in shards_there if shard.submitted_at is not None), default=now)
    return max(0.0, start - (now - sent).total_seconds())


# --- rows that come later


def reask_share(runs: Sequence[tuple[int, int]], prior: float = 200.0) -> float:
    """Return the share of rows that are sent again, as a decay-weighted mean with a prior of `prior` rows.

    `runs` are earlier runs: (rows answered, rows sent again), newest first.
    """
    rows, reasked = prior, prior * _ASSUMED_REASK_SHARE
    for newer, (answered, more) in enumerate(runs):
        weight = _DECAY**newer
        rows, reasked = rows + weight * answered, reasked + weight * more
    return reasked / rows


def reached_share(runs: Sequence[tuple[int, int]], rows: int) -> tuple[float, float]:
    """Return the expected share of rows that escalate to a stronger model, and its 95 % quantile for `rows` rows.

    `runs` are earlier runs: (rows answered, rows escalated), newest first.
    """
    share = reask_share(runs, _REACHED_PRIOR_ROWS)
    seen = max((reached / answered for answered, reached in runs if answered), default=share)
    chance = 1.645 * math.sqrt(share * (1.0 - share) / max(1, rows))
    return share, min(1.0, max(share + chance, seen))


def dearest(runs: Sequence[tuple[float, float, float]]) -> float:
    """Return the highest likely cost of a run, as a multiple of its p50. It is learned from runs that exceeded their
    p95.

    `runs` are (p50, p95, cost), newest first. Returns 0 if no excess counts. Forecasts miss some causes, such as an
    unannounced price rise. The few observed excesses are probably not the worst, so the largest of k excesses counts
    (1 + 1/k) times.

    An excess is cost / p50 - 1 of a run that exceeded its p95. It counts unless the newest `CONFIRMED_BY` runs all
    stay below half of it. These runs need not exceed their p95, because a later p95 already includes the excess.
    """
    seen = [(cost / p50 - 1.0, cost > p95) for p50, p95, cost in runs if p50 > 0]
    recent = max((excess for excess, _ in seen[:CONFIRMED_BY]), default=0.0)
    excess = [each for each, is_excess in seen if is_excess and each <= 2.0 * recent]
    return 1.0 + max(excess) * (1.0 + 1.0 / len(excess)) if excess else 0.0


_ASSUMED_REASK_SHARE, _DECAY = 0.01, 0.8
_REACHED_PRIOR_ROWS = 20.0
