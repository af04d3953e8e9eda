"""Stints (stretches of work) and the summary of a night of stints: its rate and its outages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import HOUR, MINUTE

LEVEL_QUANTILE = 0.7
"""A night's level is this quantile of its rates, weighted by time.

The level is thus a normal rate even if the engine was down for half of the night.
"""
OUTAGE_LEVEL = 0.5
"""An engine whose rate is below this share of the night's level has an outage."""
_WINDOW, _LONGEST_WINDOW = 5 * MINUTE, 30 * MINUTE
"""Shortest and longest window, in seconds, over which rates are measured."""
_WINDOW_ROWS = 10.0
"""Number of rows that a window should contain: enough to tell a pause from chance."""


class Stint(Struct, frozen=True):
    """A stretch of time in which an engine had our rows, and the work that it did.

    `tokens` is the weighted work of these rows in prompt tokens; 0 if unknown. `alike` is the share of the work that
    came from the forecast's own job series, the jobs of one file.
    """

    begin: datetime
    end: datetime
    rows: float
    tokens: float = 0.0
    alike: float = 1.0

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()

    @property
    def work(self) -> float:
        """Work done: tokens if counted, otherwise rows."""
        return self.tokens or self.rows

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.work / self.seconds


class NightSeen(Struct, frozen=True):
    """A night's mean rate and hours of normal work, its outages, and the spread of its rates.

    `rate` is the mean over normal windows, in work per second. `alike` is the share of the work that came from the
    forecast's own job series. `outages` has the seconds of each outage, and False if it still lasted at the end of
    the night. `deviations` has the log ratio of each normal window's rate to `rate`.
    """

    rate: float
    hours: float
    alike: float
    outages: tuple[tuple[float, bool], ...]
    deviations: tuple[float, ...]

    @staticmethod
    def of(stints: Sequence[Stint], hours: Sequence[float]) -> NightSeen:
        """Summarize a night's stints. `hours` is the hourly profile to remove: 24 factors (UTC)."""
        rates = [(one.rate / hours[one.begin.hour], one) for one in stints]
        level = quantile([(rate, one.seconds) for rate, one in rates if rate > 0], LEVEL_QUANTILE)
        if not level:
            return NightSeen(0.0, 0.0, 1.0, _outages(rates, 1.0), ())
        normal = _normal_windows(rates, OUTAGE_LEVEL * level)
        seconds = sum(one.seconds for _, one in normal)
        if not seconds:
            return NightSeen(0.0, 0.0, 1.0, _outages(rates, OUTAGE_LEVEL * level), ())
        rate = sum(rate * one.seconds for rate, one in normal) / seconds
        alike = sum(one.alike * one.seconds for _, one in normal) / seconds
        return NightSeen(
            rate, seconds / HOUR, alike, _outages(rates, OUTAGE_LEVEL * level), _log_deviations(normal, rate)
        )


def _normal_windows(rates: Sequence[tuple[float, Stint]], bound: float) -> list[tuple[float, Stint]]:
    """Return the windows whose rate is at least `bound`.

    A window next to a window with rate 0 is left out: it may contain a part of the standstill.
    """
    windows = []
    for place, (rate, one) in enumerate(rates):
        beside = (*rates[max(0, place - 1) : place], *rates[place + 1 : place + 2])
        if rate >= bound and all(other > 0 for other, _ in beside):
            windows.append((rate, one))
    return windows


def _outages(rates: Sequence[tuple[float, Stint]], bound: float) -> tuple[tuple[float, bool], ...]:
    outages: list[tuple[float, bool]] = []
    out = 0.0
    for rate, one in rates:
        if rate < bound:
            out += one.seconds
        elif out:
            outages.append((out, True))
            out = 0.0
    if out:
        outages.append((out, False))
    return tuple((seconds, ended) for seconds, ended in outages if seconds >= _WINDOW - 1.0)


def _log_deviations(pieces: Sequence[tuple[float, Stint]], rate: float) -> tuple[float, ...]:
    deviations = [math.log(each / rate) for each, one in pieces if one.seconds >= _WINDOW - 1.0]
    return tuple(deviations) if len(deviations) > 1 else ()


def in_common_unit(stints: Sequence[Stint], a_row: float, *, counted: bool) -> list[Stint]:
    """Convert the work of stints to tokens if `counted`, otherwise to rows.

    `a_row` is the number of tokens assumed for a row without a token count.
    """
    if counted:
        return [one if one.tokens or not one.rows else replace(one, tokens=one.rows * a_row) for one in stints]
    return [replace(one, tokens=0.0) if one.tokens else one for one in stints]


def in_windows(stints: Sequence[Stint]) -> list[Stint]:
    """Merge adjacent stints into windows long enough to tell a pause from chance."""
    seconds, rows = sum(one.seconds for one in stints), sum(one.rows for one in stints)
    window = min(_LONGEST_WINDOW, max(_WINDOW, _WINDOW_ROWS * seconds / rows if rows else _WINDOW))
    windows: list[Stint] = []
    piece: list[Stint] = []
    length = 0.0
    for one, after in zip_longest(stints, stints[1:]):
        piece.append(one)
        length += one.seconds
        if length >= window - 1.0 or after is None or after.begin - one.end > timedelta(minutes=1):
            windows.append(_join(piece, length))
            piece, length = [], 0.0
    return windows


def _join(piece: Sequence[Stint], seconds: float) -> Stint:
    if len(piece) == 1:
        return piece[0]
    alike = sum(one.alike * one.seconds for one in piece) / seconds
    end = piece[0].begin + timedelta(seconds=seconds)
    return Stint(piece[0].begin, end, sum(one.rows for one in piece), sum(one.tokens for one in piece), alike)


def mean_rate(stints: Sequence[Stint]) -> float:
    """Return the mean work per second, outages included."""
    return sum(one.work for one in stints) / sum(one.seconds for one in stints)


def median(weighed: Iterable[tuple[float, float]]) -> float:
    return quantile(weighed, 0.5)


def quantile(weighed: Iterable[tuple[float, float]], part: float) -> float:
    """Return the weighted quantile at `part`, or 0 if there are no values."""
    marks = sorted(weighed)
    bound, cumulative = part * sum(weight for _, weight in marks), 0.0
    for value, weight in marks:
        cumulative += weight
        if cumulative >= bound:
            return value
    return 0.0


def night_of(at: datetime) -> date:
    return (at - timedelta(hours=12)).date()
