"""Work of an output token relative to a prompt token, learned from an engine's progress. Pure.

Without this weight, rows with short answers would give a wrong speed for rows with long answers. Each job that had an
engine to itself yields prompt tokens, output tokens and seconds. The weight is a maximum a posteriori estimate: with
it, the speeds of all jobs agree best. If all jobs have the same mix of tokens, the estimate is the prior.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from orchestrator.core.model import JobId, ProgressSample
from orchestrator.core.shards import Shard
from orchestrator.policy.planner.stints import OUTPUT_WEIGHT, Sight, samples_at_work

ASSUMED_SPREAD, MEASURED_SPREAD = 0.7, 0.25
"""Spread of the logarithm of the prior weight: of an assumed weight, and of a weight measured by a bench."""
SPEED_SPREAD = 0.15
"""Spread of the logarithm of a job's speed that the weight does not explain."""
MIN_SECONDS = 60.0
"""Minimum seconds of an observation. Shorter observations are ignored."""
_STEPS = 80
_LOWEST, _HIGHEST = 0.5, 200.0
_GRID = tuple(_LOWEST * math.pow(_HIGHEST / _LOWEST, step / _STEPS) for step in range(_STEPS + 1))


class JobWork(Struct, frozen=True):
    """Work that an engine did for one job while it had no other job."""

    input_tokens: float
    output_tokens: float
    seconds: float


def output_weight(sight: Sight, measured: float | None = None) -> float:
    """Return the maximum a posteriori weight of an output token at a backend.

    `measured` is the weight that a bench measured, or None.
    """
    observed = [one for one in exclusive_work(sight) if one.seconds >= MIN_SECONDS and one.input_tokens > 0]
    prior, spread = (OUTPUT_WEIGHT, ASSUMED_SPREAD) if measured is None else (measured, MEASURED_SPREAD)
    if len(observed) < 2:
        return prior
    return min(
        (prior, *_GRID), key=lambda weight: _misfit(observed, weight) + (math.log(weight / prior) / spread) ** 2
    )


def _misfit(observed: Sequence[JobWork], weight: float) -> float:
    logs = [math.log((one.input_tokens + weight * one.output_tokens) / one.seconds) for one in observed]
    mean = sum(logs) / len(logs)
    return sum((log - mean) ** 2 for log in logs) / SPEED_SPREAD**2


def exclusive_work(sight: Sight) -> list[JobWork]:
    """Return each job's work in times when no other job made progress."""
    by_job: dict[JobId, list[ProgressSample]] = defaultdict(list)
    for one in sight.progress:
        by_job[one.job_id].append(one)
    of_job: dict[JobId, list[Shard]] = defaultdict(list)
    for shard in sight.shards:
        of_job[shard.job_id].append(shard)
    stretches = [
        (a, b)
        for job_id, samples in by_job.items()
        for a, b in samples_at_work(samples, of_job[job_id], samples[-1].at)
        if b.done > a.done
    ]
    stretches.sort(key=lambda pair: pair[0].at)
    work_by_job: dict[JobId, list[JobWork]] = defaultdict(list)
    for place, (a, b) in enumerate(stretches):
        before = stretches[place - 1][1].at if place else None
        after = stretches[place + 1][0].at if place + 1 < len(stretches) else None
        if (before is None or before <= a.at) and (after is None or after >= b.at):
            seconds = (b.at - a.at).total_seconds()
            input_tokens, output_tokens = b.input_tokens - a.input_tokens, b.output_tokens - a.output_tokens
            work_by_job[a.job_id].append(JobWork(input_tokens, output_tokens, seconds))
    return [
        JobWork(*(sum(getattr(one, name) for one in of_job) for name in JobWork.__struct_fields__))
        for of_job in work_by_job.values()
    ]
