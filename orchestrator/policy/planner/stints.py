"""Stints (times in which engines worked on our rows), derived from shards and progress samples. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.engines import EngineHold
from orchestrator.core.model import JobId, ProgressSample
from orchestrator.core.shards import Shard, ShardState
from orchestrator.policy.forecast import Stint

OUTPUT_WEIGHT = 8.0
"""Assumed work of an output token, in prompt tokens. `token_weights` learns the real value."""
MAX_GAP = timedelta(minutes=15)
"""Progress samples further apart say nothing about the time between them."""
MAX_PAUSE = timedelta(seconds=5)
"""Longest time between two shards that counts as no pause."""
DOUBTED_FOR = timedelta(hours=12)
"""Time for which an engine may be at a standstill after its rows were taken back."""
MIN_ROWS, MIN_SPAN = 10, timedelta(seconds=2)
"""`MIN_ROWS` rows are assumed to take at least `MIN_SPAN`: one poll may see the first and last row of a shard."""
MIN_LEFT_SHARE = 0.3
"""Minimum number of rows left at a sample, as a share of the rows done since the previous sample.

If fewer rows are left, the interval says nothing about the speed.
"""
_FINAL = frozenset(status for status in BatchStatus if status.is_final)


class Sight(Struct, frozen=True):
    """Observations of one backend: the newest shards of every job, latest last, and progress samples, oldest
    first.
    """

    backend: str
    shards: Sequence[Shard]
    progress: Sequence[ProgressSample] = ()
    holds: Sequence[EngineHold] = ()
    """Times at which the backend's engines took rows. Set only if the number of engines changes with demand."""
    most_engines: int = 0
    """Maximum number of engines; 0 if the number does not change."""

    def of_jobs(self, jobs: Collection[JobId]) -> Sight:
        """Return the observations of these jobs only."""
        return replace(
            self,
            shards=[shard for shard in self.shards if shard.job_id in jobs],
            progress=[one for one in self.progress if one.job_id in jobs],
        )


def unfinished(shard: Shard, rows: int) -> int:
    """Return the number of a shard's open `rows` that its backend has not done yet, by the backend's own report.

    If the batch has ended but its files are missing, all rows are unfinished.
    """
    return rows if waits_for_answers(shard) else max(0, rows - shard.done_rows)


def waits_for_answers(shard: Shard) -> bool:
    """Return True if a batch ended at its backend, but its files are missing or incomplete."""
    return shard.held is not None and shard.provider_status in _FINAL


class Start(Struct, frozen=True):
    """Rows sent to an idle engine, and the time of their first answer.

    `is_doubted` is True if the engine's last rows were taken back. The engine may stand still, so the wait does not
    count as a start.
    """

    sent: datetime
    first: datetime | None
    is_doubted: bool = False


def starts_of(sight: Sight) -> Iterator[Start]:
    """Yield each time at which rows were sent to an idle engine, oldest first."""
    busy_until: datetime | None = None
    was_taken_back = False
    for shard in sight.shards:
        sent = shard.submitted_at
        if sent is None:
            continue
        if busy_until is None or sent > busy_until:
            is_doubted = was_taken_back and busy_until is not None and sent <= busy_until + DOUBTED_FOR
            yield Start(sent, shard.first_at, is_doubted)
        ended = shard.ended_at or datetime.max.replace(tzinfo=UTC)
        busy_until = ended if busy_until is None else max(busy_until, ended)
        was_taken_back = shard.rerouted_at is not None


def work_of(input_tokens: float, output_tokens: float, weight: float = OUTPUT_WEIGHT) -> float:
    """Return a row's work in prompt tokens: input + weight · output."""
    return input_tokens + weight * output_tokens


def stints_of(
    sight: Sight,
    series: str,
    start: float,
    now: datetime,
    *,
    since: datetime | None = None,
    weight: float = OUTPUT_WEIGHT,
) -> list[Stint]:
    """Return a backend's stints since `since` (None: all), sorted and without overlap.

    The stints of a job come from its progress samples, or from its shards if no sample shows work. `series` is the
    forecast's own job series. `start` is the assumed number of seconds of an engine start. `weight` is the work of an
    output token (see `work_of`).
    """
    by_job: dict[JobId, list[ProgressSample]] = defaultdict(list)
    for one in sight.progress:
        if since is None or one.at >= since:
            by_job[one.job_id].append(one)
    of_job: dict[JobId, list[Shard]] = defaultdict(list)
    for shard in sight.shards:
        if since is None or (shard.ended_at or now) >= since:
            of_job[shard.job_id].append(shard)
    stints: list[Stint] = []
    sampled_jobs: set[JobId] = set()
    pauses = _start_intervals(sight, start, now)
    for job_id, samples in by_job.items():
        shards = of_job.get(job_id, [])
        if live := _current_sample(shards, samples, now):
            samples = [*samples, live]
        job_stints = list(_stints_of_samples(samples_at_work(samples, shards, now), series, weight))
        if any(one.rows > 0 for one in _without_starts(job_stints, pauses)):
            sampled_jobs.add(job_id)
        stints += job_stints
    stints = _without_starts(merge(stints), pauses)
    idle = {one.sent for one in starts_of(sight)}
    unsampled = [one for job_id, shards in of_job.items() if job_id not in sampled_jobs for one in shards]
    stints = merge([*stints, *_stints_of_shards(unsampled, idle, start, weight)])
    return [_scale_to_all_engines(one, sight) for one in stints] if sight.most_engines else stints


def _scale_to_all_engines(stint: Stint, sight: Sight) -> Stint:
    seconds = sum(
        max(0.0, (min(one.seen_at, stint.end) - max(one.warm_at, stint.begin)).total_seconds())
        for one in sight.holds
        if one.warm_at is not None
    )
    engines = min(float(sight.most_engines), max(1.0, seconds / max(1e-9, stint.seconds)))
    factor = sight.most_engines / engines
    return replace(stint, rows=stint.rows * factor, tokens=stint.tokens * factor)


def _start_intervals(sight: Sight, start: float, now: datetime) -> list[tuple[datetime, datetime]]:
    intervals = []
    for one in starts_of(sight):
        longest = min(now, one.sent + timedelta(seconds=start))
        first = longest if one.first is None else min(one.first, longest) if one.is_doubted else one.first
        intervals.append((one.sent, first))
    return intervals


def _without_starts(stints: Sequence[Stint], pauses: Sequence[tuple[datetime, datetime]]) -> list[Stint]:
    """Return the stints without engine starts, because a start says nothing about speed.

    If a start takes longer than assumed, the excess counts as a standstill.
    """
    working, at = [], 0
    for one in stints:
        while at < len(pauses) and pauses[at][1] <= one.begin:
            at += 1
        if at == len(pauses) or pauses[at][0] >= one.end:
            working.append(one)
        elif one.rows <= 0 and pauses[at][1] < one.end:
            working.append(replace(one, begin=max(one.begin, pauses[at][1])))
    return working


def _current_sample(
    shards: Sequence[Shard], samples: Sequence[ProgressSample], now: datetime
) -> ProgressSample | None:
    """Return a job's present progress, computed from its shards. Returns None if the job has no batch at the
    backend.
    """
    if not any(shard.state is ShardState.SUBMITTED for shard in shards) or not samples or samples[-1].at >= now:
        return None
    last = samples[-1]
    rows = sum(shard.done_rows for shard in shards)
    input_tokens = sum(shard.provider_input_tokens for shard in shards)
    output_tokens = sum(shard.provider_output_tokens for shard in shards)
    left = sum(unfinished(shard, shard.rows) for shard in shards if shard.state is ShardState.SUBMITTED)
    return ProgressSample(
        last.job_id, last.series, last.backend, now, max(rows, last.done), left, max(input_tokens, last.input_tokens),
        max(output_tokens, last.output_tokens),
    )  # fmt: skip


def samples_at_work(
    samples: Sequence[ProgressSample], shards: Sequence[Shard], now: datetime
) -> Iterator[tuple[ProgressSample, ProgressSample]]:
    """Yield pairs of consecutive samples between which a job always had enough rows to do.

    `shards` are the job's shards at the engine. The last few rows of a job say nothing about speed. A pause between
    two waves is not a standstill.
    """
    intervals = _work_intervals(shards, now)
    begins = [begin for begin, _ in intervals]
    for a, b in pairwise(samples):
        rows = max(0, b.done - a.done)
        # An engine without rows left, as in back-off, does not stand still.
        if not (a.at < b.at <= a.at + MAX_GAP and a.left and b.left and b.left >= MIN_LEFT_SHARE * rows):
            continue
        place = bisect_right(begins, a.at) - 1
        if place < 0 or intervals[place][1] >= b.at:  # before the oldest known shard, the job is assumed to have rows
            yield a, b


def _work_intervals(shards: Sequence[Shard], now: datetime) -> list[tuple[datetime, datetime]]:
    intervals: list[tuple[datetime, datetime]] = []
    for begin, end in sorted((one.submitted_at, one.ended_at or now) for one in shards if one.submitted_at):
        if intervals and begin <= intervals[-1][1] + MAX_PAUSE:
            intervals[-1] = intervals[-1][0], max(intervals[-1][1], end)
        else:
            intervals.append((begin, end))
    return intervals


def _stints_of_samples(
    pairs: Iterable[tuple[ProgressSample, ProgressSample]], series: str, weight: float
) -> Iterator[Stint]:
    for a, b in pairs:
        work = work_of(b.input_tokens - a.input_tokens, b.output_tokens - a.output_tokens, weight)
        yield Stint(a.at, b.at, max(0, b.done - a.done), max(0.0, work), float(a.series == series))


def _stints_of_shards(
    shards: Sequence[Shard], idle: Collection[datetime], start: float, weight: float
) -> Iterator[Stint]:
    """Yield the stints of jobs without progress samples, derived from their shards. Their rate is a lower bound.

    Overlapping shards form one stint, because the order of their rows is unknown. `idle` has the times at which rows
    were sent to an idle engine. A stint that was sent at such a time begins when its first row is done. With fewer
    than `MIN_ROWS` rows, that time is unreliable. The stint then begins `start` seconds after its rows were sent. It
    is left out if the rest is no longer than `start`. Stints with far fewer rows than the largest stint are left out,
    too.
    """
    groups: list[list[Shard]] = []
    until = datetime.min.replace(tzinfo=UTC)
    ended = [shard for shard in shards if shard.submitted_at and shard.ended_at and shard.done_rows]
    for shard in sorted(ended, key=_sent_at):
        if groups and _sent_at(shard) < until:
            groups[-1].append(shard)
        else:
            groups.append([shard])
        until = max(until, _ended_at(shard))
    rows = [sum(shard.done_rows for shard in group) for group in groups]
    for group, rows_of_group in zip(groups, rows, strict=True):
        if 2 * rows_of_group < max(rows):
            continue
        sent, end = _sent_at(group[0]), max(map(_ended_at, group))
        first = min((one.first_at for one in group if one.first_at is not None), default=None)
        if sent in idle and first is not None and rows_of_group >= MIN_ROWS:
            begin, least = min(first, end - MIN_SPAN), 0.0
        else:
            begin = sent + timedelta(seconds=start) if sent in idle else sent
            least = max(1.0, (begin - sent).total_seconds())
        if (end - begin).total_seconds() > least:
            work = sum(work_of(one.provider_input_tokens, one.provider_output_tokens, weight) for one in group)
            yield Stint(begin, end, rows_of_group, work)


def _sent_at(shard: Shard) -> datetime:
    assert shard.submitted_at is not None
    return shard.submitted_at


def _ended_at(shard: Shard) -> datetime:
    assert shard.ended_at is not None
    return shard.ended_at


def merge(stints: Iterable[Stint]) -> list[Stint]:
    """Merge the stints of several jobs into stints of the engine. Concurrent work is added up."""
    ordered = sorted(stints, key=lambda one: one.begin)
    if all(a.end <= b.begin for a, b in pairwise(ordered)):
        return ordered
    marks = sorted({at for one in ordered for at in (one.begin, one.end)})
    merged: list[Stint] = []
    running: list[Stint] = []
    remaining = iter(ordered)
    next_stint = next(remaining, None)
    for begin, end in pairwise(marks):
        while next_stint is not None and next_stint.begin <= begin:
            running.append(next_stint)
            next_stint = next(remaining, None)
        running = [one for one in running if one.end > begin]
        if running:
            seconds = (end - begin).total_seconds()
            rows = sum(one.rows * seconds / one.seconds for one in running)
            tokens = sum(one.tokens * seconds / one.seconds for one in running)
            alike = sum(one.alike * one.rows for one in running) / max(1e-9, sum(one.rows for one in running))
            merged.append(Stint(begin, end, rows, tokens, min(1.0, alike)))
    return merged
