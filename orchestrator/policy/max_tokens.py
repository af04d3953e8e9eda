"""The `max_tokens` of a task: the written value, or for `auto` a bound learned from earlier answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from orchestrator.settings.task_spec import AUTO, DEFAULT_MAX_TOKENS, Task

BoundOf = Callable[[Task, str], int]


def written_bound(task: Task, prompt_version: str) -> int:
    """Return the task's own bound on the tokens of an answer. For `auto`, that is the default bound."""
    return DEFAULT_MAX_TOKENS if task.max_tokens == AUTO else task.max_tokens


def most_tokens(task: Task, bound: int) -> int:
    """Return the maximum tokens of an answer to a task. A bound under `extra` overrides the task's own bound."""
    for name in ("max_completion_tokens", "max_output_tokens"):
        own = task.extra.get(name)
        if isinstance(own, int) and not isinstance(own, bool) and own > 0 and bound:
            return own
    return bound


ENOUGH_ANSWERS = 200
_MOST = 0.999
_MARGIN = 1.25
_STEP = 64
AUTO_AT_MOST = 4096
"""Highest learned bound, in tokens."""


def bound_from(seen: Mapping[int, int], cut_at: int | None) -> int:
    """Return the maximum tokens of an answer, learned from earlier answers, but at most AUTO_AT_MOST.

    `seen` maps each length of an answer, in tokens, to the number of answers with that length. With fewer than
    ENOUGH_ANSWERS answers, the default bound applies. Otherwise the learned length is rounded up to a multiple of 64.

    `cut_at` is the highest bound at which an answer was cut off, or None. Up to AUTO_AT_MOST, the new bound is at
    least twice `cut_at`.
    """
    total = sum(seen.values())
    bound = DEFAULT_MAX_TOKENS
    if total >= ENOUGH_ANSWERS:
        rank, so_far = math.ceil(total * _MOST), 0
        for length in sorted(seen):
            so_far += seen[length]
            if so_far >= rank:
                bound = max(_STEP, math.ceil(length * _MARGIN / _STEP) * _STEP)
                break
    return min(AUTO_AT_MOST, max(bound, 2 * (cut_at or 0)))
