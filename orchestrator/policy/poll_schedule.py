"""Schedule of a batch's polls. Pure."""

from __future__ import annotations

from orchestrator.core.durations import MINUTE, spread

GROWTH = 1.5
LONGEST_FACTOR = 5
LONGEST = 10.0 * MINUTE


def next_look(base: float, looks: int, *, seed: str, ends_in: float | None = None) -> float:
    """Return the seconds until the next poll of a batch, after this many polls without news.

    `base` is the shortest pause; each pause is 1.5 times the one before, up to five times `base` and ten minutes.
    When batches usually end (`ends_in` seconds from now) it is `base` again. A fifth is random.
    """
    longest = max(base, min(LONGEST_FACTOR * base, LONGEST))
    pause = min(longest, base * GROWTH ** min(looks, 10))
    # A batch overdue by more than the longest pause is late for its own reason: polling often does not help.
    if ends_in is not None and ends_in > -longest:
        pause = min(pause, max(base, ends_in))
    return min(longest, spread(pause, seed))
