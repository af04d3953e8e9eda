"""Where shards are, and the stretches in which engines worked on them: shards and progress in, stints out. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.engines import EngineHold
from orchestrator.core.model import JobId, ProgressSample
from orchestrator.core.shards import Shard, ShardState
from orchestrator.core.wire import BatchStatus
from orchestrator.policy.forecast import Stint

OUTPUT_WEIGHT = 8.0
"""How much more work a token of an answer is than one of a prompt, before it was learned (see `token_weights`)."""
GAP = timedelta(minutes=15)
"""Between two looks that are further apart nobody knows what happened."""
NO_PAUSE = timedelta(seconds=5)
"""Between the end of a shard and the next one that follows at once."""
ENOUGH_ROWS, AT_ONCE = 10, timedelta(seconds=2)
"""So many rows that were done between two looks took this long at least."""
ENOUGH_LEFT = 0.3
"""The part of what was done between two looks that has to be left then."""
_OVER = frozenset(status for status in BatchStatus if status.is_final)


class Sight(Struct, frozen=True):
    """What a home has seen of one backend: the newest shards that were sent there, of every job and the latest last,
    and the progress of jobs there, oldest first."""

    backend: str
    shards: Sequence[Shard]
    progress: Sequence[ProgressSample] = ()
    holds: Sequence[EngineHold] = ()
    """When its engines took rows, where their number changes by what is to be done."""
    most_engines: int = 0
    """How many of those there may be; 0 where their number does not change."""

    def of_jobs(self, jobs: Collection[JobId]) -> Sight:
        """What was seen of these jobs alone."""
        return replace(
            self,
            shards=[shard for shard in self.shards if shard.job_id in jobs],
            progress=[one for one in self.progress if one.job_id in jobs],
        )


def done(shard: Shard) -> int:
    """How many of a shard's rows its backend has done, as far as it says: what a batch that was cut short leaves is
    told as failed."""
    cut = (BatchStatus.CANCELLED, BatchStatus.CANCELLING, BatchStatus.EXPIRED)
    failed = 0 if shard.provider_status in cut else shard.provider_failed
    return shard.provider_completed + failed


def unfinished(shard: Shard, rows: int) -> int:
    """How many of a shard's open rows its backend has not done yet, as far as it says.

    Of a batch that is over and whose answers are waited for, none is here.
    """
    return rows if waits_for_answers(shard) else max(0, rows - done(shard))


def waits_for_answers(shard: Shard) -> bool:
    """Whether a batch is over at its backend, and its files are not here, or not whole."""
    return shard.held is not None and shard.provider_status in _OVER


def starts_of(sight: Sight) -> Iterator[tuple[datetime, datetime | None]]:
    """When rows came to an engine that had none, and when the first of them was done."""
    busy_until: datetime | None = None
    for shard in sight.shards:
        sent = shard.submitted_at
        if sent is None:
            continue
        if busy_until is None or sent > busy_until:
            yield sent, shard.first_at
        over = shard.ended_at or datetime.max.replace(tzinfo=UTC)
        busy_until = over if busy_until is None else max(busy_until, over)


def work_of(input_tokens: float, output_tokens: float, weight: float = OUTPUT_WEIGHT) -> float:
    """Tokens of a row as the time they take of an engine, in tokens of prompts."""
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
    """When a backend had rows (since then), and how many it did, by looks at it; in order, none over another."""
    by_job: dict[JobId, list[ProgressSample]] = defaultdict(list)
    for one in sight.progress:
        if since is None or one.at >= since:
            by_job[one.job_id].append(one)
    of_job: dict[JobId, list[Shard]] = defaultdict(list)
    for shard in sight.shards:
        if since is None or (shard.ended_at or now) >= since:
            of_job[shard.job_id].append(shard)
    found: list[Stint] = []
    at_looks: set[JobId] = set()
    pauses = _pauses(sight, start, now)
    for job_id, samples in by_job.items():
        shards = of_job.get(job_id, [])
        if live := _live(shards, samples, now):
            samples = [*samples, live]
        seen = list(_of_samples(looks_at_work(samples, shards, now), series, weight))
        if any(one.rows > 0 for one in _while_working(seen, pauses)):
            at_looks.add(job_id)
        found += seen
    found = _while_working(merged(found), pauses)
    idle = {sent for sent, _ in starts_of(sight)}
    between = [one for job_id, shards in of_job.items() if job_id not in at_looks for one in shards]
    found = merged([*found, *_of_shards(between, idle, start, weight)])
    return [_with_all_engines(one, sight) for one in found] if sight.most_engines else found


def _with_all_engines(stint: Stint, sight: Sight) -> Stint:
    """A stint as if all engines had run that may: with fewer, it says how fast each is, and no more."""
    seconds = sum(
        max(0.0, (min(one.seen_at, stint.end) - max(one.warm_at, stint.begin)).total_seconds())
        for one in sight.holds
        if one.warm_at is not None
    )
    engines = min(float(sight.most_engines), max(1.0, seconds / max(1e-9, stint.seconds)))
    factor = sight.most_engines / engines
    return replace(stint, rows=stint.rows * factor, tokens=stint.tokens * factor)


def _pauses(sight: Sight, start: float, now: datetime) -> list[tuple[datetime, datetime]]:
    """When the engine started, from the rows that it was sent until the first of them was done."""
    return [
        (sent, first if first is not None else min(now, sent + timedelta(seconds=start)))
        for sent, first in starts_of(sight)
    ]


def _while_working(stints: Sequence[Stint], pauses: Sequence[tuple[datetime, datetime]]) -> list[Stint]:
    """The stints without those in which the engine started: that is no speed. One that does not come stands still."""
    found, at = [], 0
    for one in stints:
        while at < len(pauses) and pauses[at][1] <= one.begin:
            at += 1
        if at == len(pauses) or pauses[at][0] >= one.end:
            found.append(one)
        elif one.rows <= 0 and pauses[at][1] < one.end:
            found.append(replace(one, begin=max(one.begin, pauses[at][1])))
    return found


def _live(shards: Sequence[Shard], samples: Sequence[ProgressSample], now: datetime) -> ProgressSample | None:
    """How far a job is at this moment, where it runs there."""
    if not any(shard.state is ShardState.SUBMITTED for shard in shards) or not samples or samples[-1].at >= now:
        return None
    last = samples[-1]
    rows = sum(done(shard) for shard in shards)
    fed = sum(shard.provider_input_tokens for shard in shards)
    told = sum(shard.provider_output_tokens for shard in shards)
    left = sum(unfinished(shard, shard.rows) for shard in shards if shard.state is ShardState.SUBMITTED)
    return ProgressSample(
        last.job_id, last.series, last.backend, now, max(rows, last.done), left, max(fed, last.input_tokens),
        max(told, last.output_tokens),
    )  # fmt: skip


def looks_at_work(
    samples: Sequence[ProgressSample], shards: Sequence[Shard], now: datetime
) -> Iterator[tuple[ProgressSample, ProgressSample]]:
    """Two looks in a row at a job that had enough to do all the time between them; `shards` are those it had there.

    The last few rows do not say how fast an engine is, nor does a pause between two waves that it stands still.
    """
    at_work = _at_work(shards, now)
    begins = [begin for begin, _ in at_work]
    for a, b in pairwise(samples):
        rows = max(0, b.done - a.done)
        # Without rows and with nothing left to work on, as in back-off, it does not stand still.
        if not (a.at < b.at <= a.at + GAP and a.left and b.left and b.left >= ENOUGH_LEFT * rows):
            continue
        place = bisect_right(begins, a.at) - 1
        if place < 0 or at_work[place][1] >= b.at:  # of shards so long ago that they are forgotten nothing is known
            yield a, b


def _at_work(shards: Sequence[Shard], now: datetime) -> list[tuple[datetime, datetime]]:
    """From when until when a job had rows at an engine. Between what follows at once there is no pause."""
    found: list[tuple[datetime, datetime]] = []
    for begin, end in sorted((one.submitted_at, one.ended_at or now) for one in shards if one.submitted_at):
        if found and begin <= found[-1][1] + NO_PAUSE:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _of_samples(
    looks: Iterable[tuple[ProgressSample, ProgressSample]], series: str, weight: float
) -> Iterator[Stint]:
    for a, b in looks:
        work = work_of(b.input_tokens - a.input_tokens, b.output_tokens - a.output_tokens, weight)
        yield Stint(a.at, b.at, max(0, b.done - a.done), max(0.0, work), float(a.series == series))


def _of_shards(shards: Sequence[Shard], idle: Collection[datetime], start: float, weight: float) -> Iterator[Stint]:
    """The same of jobs that were over between two looks, by their shards: it is no slower than that.

    Shards that were there together are one stretch: nobody knows in which order they were done. What was sent to an
    engine that was `idle` waited for its start, until the first row was done; of a few rows nobody knows when that
    was, and where they took little longer than a start does, they tell of that alone.
    """
    together: list[list[Shard]] = []
    until = datetime.min.replace(tzinfo=UTC)
    over = [shard for shard in shards if shard.submitted_at and shard.ended_at and done(shard)]
    for shard in sorted(over, key=_sent):
        if together and _sent(shard) < until:
            together[-1].append(shard)
        else:
            together.append([shard])
        until = max(until, _ended(shard))
    rows = [sum(map(done, group)) for group in together]
    for group, many in zip(together, rows, strict=True):
        if 2 * many < max(rows):
            continue
        sent, end = _sent(group[0]), max(map(_ended, group))
        first = min((one.first_at for one in group if one.first_at is not None), default=None)
        if sent in idle and first is not None and many >= ENOUGH_ROWS:
            begin, least = min(first, end - AT_ONCE), 0.0
        else:
            begin = sent + timedelta(seconds=start) if sent in idle else sent
            least = max(1.0, (begin - sent).total_seconds())
        if (end - begin).total_seconds() > least:
            work = sum(work_of(one.provider_input_tokens, one.provider_output_tokens, weight) for one in group)
            yield Stint(begin, end, many, work)


def _sent(shard: Shard) -> datetime:
    assert shard.submitted_at is not None
    return shard.submitted_at


def _ended(shard: Shard) -> datetime:
    assert shard.ended_at is not None
    return shard.ended_at


def merged(stints: Iterable[Stint]) -> list[Stint]:
    """Stints of several jobs as those of the engine: what ran at once is added up."""
    ordered = sorted(stints, key=lambda one: one.begin)
    if all(a.end <= b.begin for a, b in pairwise(ordered)):
        return ordered
    marks = sorted({at for one in ordered for at in (one.begin, one.end)})
    found: list[Stint] = []
    running: list[Stint] = []
    rest = iter(ordered)
    coming = next(rest, None)
    for begin, end in pairwise(marks):
        while coming is not None and coming.begin <= begin:
            running.append(coming)
            coming = next(rest, None)
        running = [one for one in running if one.end > begin]
        if running:
            seconds = (end - begin).total_seconds()
            rows = sum(one.rows * seconds / one.seconds for one in running)
            tokens = sum(one.tokens * seconds / one.seconds for one in running)
            alike = sum(one.alike * one.rows for one in running) / max(1e-9, sum(one.rows for one in running))
            found.append(Stint(begin, end, rows, tokens, min(1.0, alike)))
    return found
