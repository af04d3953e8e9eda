"""Schedule of a batch's polls, and signs that it takes longer than usual. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from orchestrator.core.durations import MINUTE, duration, spread
from orchestrator.core.wire import BatchStatus

GROWTH = 1.5
LONGEST_FACTOR = 5
LONGEST = 10.0 * MINUTE
ENOUGH = 5
"""From this number of batches on, the usual times are learned from our own; before, they are assumed."""

_OVER = frozenset(status for status in BatchStatus if status.is_final)
_BRIEF = frozenset({BatchStatus.VALIDATING, BatchStatus.FINALIZING, BatchStatus.CANCELLING})
_ASSUMED = 10.0 * MINUTE
_LATE = 2
_LEAST = 5.0 * MINUTE
_QUIET = 30.0 * MINUTE


class Usual(Struct, frozen=True):
    """Usual duration of a backend's batches, in seconds from submission: until the first row, and until the end.

    `samples` counts the observed batches; too few of them prove nothing.
    """

    validating_p90: float = 0.0
    total_p50: float = 0.0
    total_p90: float = 0.0
    samples: int = 0

    @property
    def is_known(self) -> bool:
        """True if enough batches were observed."""
        return self.samples >= ENOUGH


def usual_of(batches: Sequence[tuple[float, float]]) -> Usual:
    """Return the usual times, from the seconds that batches took from submission to the first row, and to the end."""
    began = sorted(first for first, _ in batches)
    ended = sorted(end for _, end in batches)
    return Usual(_part(began, 0.9), _part(ended, 0.5), _part(ended, 0.9), len(batches))


def _part(values: Sequence[float], part: float) -> float:
    """Return the value that this part of the sorted values does not exceed."""
    return values[math.ceil(len(values) * part) - 1] if values else 0.0


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


def stall(
    status: str,
    *,
    in_status: float,
    since_submission: float,
    since_progress: float | None,
    window: float,
    overruns: bool,
    usual: Usual,
) -> str | None:
    """Describe for people what is unusual about a batch's duration; None if nothing is, or it is over.

    All times are in seconds: in this status, since the batch was made, since the last new row, and the window. The
    third is None without a new row, or if the provider does not count rows. `overruns`: the provider lets batches run
    past the window.
    """
    if status in _OVER:
        return None
    if since_submission > window + _LEAST:
        goes_on = "which this provider allows" if overruns else "and its provider has not ended it"
        return f"running over its window of {duration(window)}, {goes_on}"
    told = f"{status.replace('_', ' ')} for {duration(in_status)}"
    if status in _BRIEF:
        is_known = usual.is_known and status == BatchStatus.VALIDATING
        p90 = usual.validating_p90 if is_known else _ASSUMED
        return f"{told}; usual p90 {_p90(p90, is_known)}" if in_status > max(_LEAST, _LATE * p90) else None
    p90 = usual.total_p90 if usual.is_known else window
    whole = f"usual p90 of the whole {_p90(p90, usual.is_known)}"
    if since_progress is not None and since_progress > max(_QUIET, p90 / _LATE):
        return f"{told} with no further row for {duration(since_progress)}; {whole}"
    return f"{told}; {whole}" if since_submission > max(_QUIET, _LATE * p90) else None


def _p90(seconds: float, is_known: bool) -> str:
    return duration(seconds) + ("" if is_known else " (assumed)")
