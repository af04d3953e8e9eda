"""The `max_tokens` of a task: as it is written, or found from earlier answers where it is `auto`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from orchestrator.settings.task_spec import AUTO, DEFAULT_MAX_TOKENS, Task

BoundOf = Callable[[Task, str], int]


def written_bound(task: Task, prompt_version: str) -> int:
    """The most tokens that an answer to a task may have, where nothing is known of earlier ones."""
    return DEFAULT_MAX_TOKENS if task.max_tokens == AUTO else task.max_tokens


def most_tokens(task: Task, bound: int) -> int:
    """The most tokens that an answer to a task may have; a bound under `extra` stands in place of the task's own."""
    own = task.extra.get("max_completion_tokens")
    return own if isinstance(own, int) and not isinstance(own, bool) and own > 0 and bound else bound


ENOUGH_ANSWERS = 200
_MOST = 0.999
_MARGIN = 1.25
_STEP = 64
AUTO_AT_MOST = 4096
"""No bound that is found by itself is higher, in tokens."""


def bound_from(seen: Mapping[int, int], cut_at: int | None) -> int:
    """The most tokens that an answer may have, from how many earlier ones had so many.

    `cut_at` is the highest bound at which one of them was cut off: then the bound is twice that at least. Few answers
    say nothing. It is a multiple of 64, up to AUTO_AT_MOST.
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
