"""How much more work a token of an answer is than one of a prompt, learned from what an engine did. Pure.

Without it, rows with short answers would teach a wrong speed for rows with long ones. Each job that had an engine for
itself shows tokens of prompts and of answers, and the seconds they took; the weight is right with which all of them
show the same speed. Jobs that are alike tell nothing of it, and then what was assumed, or measured, stays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from orchestrator.core.model import JobId, ProgressSample
from orchestrator.core.shards import Shard
from orchestrator.policy.planner.stints import OUTPUT_WEIGHT, Sight, looks_at_work

ASSUMED_SPREAD, MEASURED_SPREAD = 0.7, 0.25
"""How far off the assumed weight may be, and one that was measured (spreads of the logarithm)."""
SPEED_SPREAD = 0.15
"""How far the speeds of two jobs differ for other reasons."""
LEAST_SECONDS = 60.0
"""What took less says nothing."""
_STEPS = 80
_LOWEST, _HIGHEST = 0.5, 200.0
_GRID = tuple(_LOWEST * math.pow(_HIGHEST / _LOWEST, step / _STEPS) for step in range(_STEPS + 1))


class JobWork(Struct, frozen=True):
    """What an engine did for one job while it had no other."""

    input_tokens: float
    output_tokens: float
    seconds: float


def output_weight(sight: Sight, measured: float | None = None) -> float:
    """The weight by what a backend has done; `measured` is that of a bench, None where there was none."""
    done = [one for one in alone(sight) if one.seconds >= LEAST_SECONDS and one.input_tokens > 0]
    prior, spread = (OUTPUT_WEIGHT, ASSUMED_SPREAD) if measured is None else (measured, MEASURED_SPREAD)
    if len(done) < 2:
        return prior
    return min((prior, *_GRID), key=lambda weight: _misfit(done, weight) + (math.log(weight / prior) / spread) ** 2)


def _misfit(done: Sequence[JobWork], weight: float) -> float:
    """How far the speeds of all jobs are from one another with this weight."""
    logs = [math.log((one.input_tokens + weight * one.output_tokens) / one.seconds) for one in done]
    mean = sum(logs) / len(logs)
    return sum((log - mean) ** 2 for log in logs) / SPEED_SPREAD**2


def alone(sight: Sight) -> list[JobWork]:
    """The work of each job in those stretches in which no other job was seen to work there."""
    by_job: dict[JobId, list[ProgressSample]] = defaultdict(list)
    for one in sight.progress:
        by_job[one.job_id].append(one)
    of_job: dict[JobId, list[Shard]] = defaultdict(list)
    for shard in sight.shards:
        of_job[shard.job_id].append(shard)
    stretches = [
        (a, b)
        for job_id, samples in by_job.items()
        for a, b in looks_at_work(samples, of_job[job_id], samples[-1].at)
        if b.done > a.done
    ]
    stretches.sort(key=lambda pair: pair[0].at)
    found: dict[JobId, list[JobWork]] = defaultdict(list)
    for place, (a, b) in enumerate(stretches):
        before = stretches[place - 1][1].at if place else None
        after = stretches[place + 1][0].at if place + 1 < len(stretches) else None
        if (before is None or before <= a.at) and (after is None or after >= b.at):
            seconds = (b.at - a.at).total_seconds()
            fed, told = b.input_tokens - a.input_tokens, b.output_tokens - a.output_tokens
            found[a.job_id].append(JobWork(fed, told, seconds))
    return [
        JobWork(*(sum(getattr(one, name) for one in of_job) for name in JobWork.__struct_fields__))
        for of_job in found.values()
    ]
