"""Stretches of work as they were seen, and what a night of them shows: its rate while it was well, its outages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import HOUR, MINUTE

WELL = 0.7
"""A night's rate is what it reaches in this part of its time, or more: it may have been dead for half of it."""
HALF = 0.5
"""Below this part of a night's rate it is out."""
_WINDOW, _LONGEST_WINDOW = 5 * MINUTE, 30 * MINUTE
_WINDOW_ROWS = 10.0


class Stint(Struct, frozen=True):
    """A stretch of time in which an engine had our rows, and what it did in it.

    `tokens` is how much work the rows were, 0 where nobody counted; `alike` is the part of it that was of rows like
    those that are asked about.
    """

    begin: datetime
    end: datetime
    rows: float
    tokens: float = 0.0
    alike: float = 1.0

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.end - self.begin).total_seconds()

    @property
    def work(self) -> float:
        """What was done, in tokens where they are counted, else in rows."""
        return self.tokens or self.rows

    @property
    def rate(self) -> float:
        """Work a second."""
        return self.work / self.seconds


class NightSeen(Struct, frozen=True):
    """A night: its rate while it was well, hours in which it was, outages (seconds, whether each ended), and how far
    the rates of its pieces are from its own."""

    rate: float
    hours: float
    alike: float
    outages: tuple[tuple[float, bool], ...]
    apart: tuple[float, ...]

    @staticmethod
    def of(stints: Sequence[Stint], hours: Sequence[float]) -> NightSeen:
        """A night of stints, its hours made alike."""
        rates = [(one.rate / hours[one.begin.hour], one) for one in stints]
        level = quantile([(rate, one.seconds) for rate, one in rates if rate > 0], WELL)
        if not level:
            return NightSeen(0.0, 0.0, 1.0, _runs(rates, 1.0), ())
        well = _whole(rates, HALF * level)
        seconds = sum(one.seconds for _, one in well)
        if not seconds:
            return NightSeen(0.0, 0.0, 1.0, _runs(rates, HALF * level), ())
        rate = sum(rate * one.seconds for rate, one in well) / seconds
        alike = sum(one.alike * one.seconds for _, one in well) / seconds
        return NightSeen(rate, seconds / HOUR, alike, _runs(rates, HALF * level), _apart(well, rate))


def _whole(rates: Sequence[tuple[float, Stint]], bound: float) -> list[tuple[float, Stint]]:
    """The pieces in which it worked all the time: what borders on a standstill has part of that in it."""
    found = []
    for place, (rate, one) in enumerate(rates):
        beside = (*rates[max(0, place - 1) : place], *rates[place + 1 : place + 2])
        if rate >= bound and all(other > 0 for other, _ in beside):
            found.append((rate, one))
    return found


def _runs(rates: Sequence[tuple[float, Stint]], bound: float) -> tuple[tuple[float, bool], ...]:
    """How long each outage was, and whether it was seen to end."""
    found: list[tuple[float, bool]] = []
    out = 0.0
    for rate, one in rates:
        if rate < bound:
            out += one.seconds
        elif out:
            found.append((out, True))
            out = 0.0
    if out:
        found.append((out, False))
    return tuple((seconds, ended) for seconds, ended in found if seconds >= _WINDOW - 1.0)


def _apart(well: Sequence[tuple[float, Stint]], rate: float) -> tuple[float, ...]:
    """How far the rates of its pieces are from that of the night."""
    pieces = [math.log(each / rate) for each, one in well if one.seconds >= _WINDOW - 1.0]
    return tuple(pieces) if len(pieces) > 1 else ()


def in_work(stints: Sequence[Stint], a_row: float, *, counted: bool) -> list[Stint]:
    """Stints with their work in one unit: tokens where they are counted, else rows."""
    if counted:
        return [one if one.tokens or not one.rows else replace(one, tokens=one.rows * a_row) for one in stints]
    return [replace(one, tokens=0.0) if one.tokens else one for one in stints]


def coarse(stints: Sequence[Stint]) -> list[Stint]:
    """The same in pieces long enough to tell a pause from chance."""
    seconds, rows = sum(one.seconds for one in stints), sum(one.rows for one in stints)
    window = min(_LONGEST_WINDOW, max(_WINDOW, _WINDOW_ROWS * seconds / rows if rows else _WINDOW))
    found: list[Stint] = []
    piece: list[Stint] = []
    length = 0.0
    for one, after in zip_longest(stints, stints[1:]):
        piece.append(one)
        length += one.seconds
        if length >= window - 1.0 or after is None or after.begin - one.end > timedelta(minutes=1):
            found.append(_joined(piece, length))
            piece, length = [], 0.0
    return found


def _joined(piece: Sequence[Stint], seconds: float) -> Stint:
    if len(piece) == 1:
        return piece[0]
    alike = sum(one.alike * one.seconds for one in piece) / seconds
    end = piece[0].begin + timedelta(seconds=seconds)
    return Stint(piece[0].begin, end, sum(one.rows for one in piece), sum(one.tokens for one in piece), alike)


def median(weighed: Iterable[tuple[float, float]]) -> float:
    return quantile(weighed, 0.5)


def quantile(weighed: Iterable[tuple[float, float]], part: float) -> float:
    """The value that this part of the weight does not exceed; 0 of none."""
    marks = sorted(weighed)
    bound, so_far = part * sum(weight for _, weight in marks), 0.0
    for value, weight in marks:
        so_far += weight
        if so_far >= bound:
            return value
    return 0.0


def night_of(at: datetime) -> date:
    return (at - timedelta(hours=12)).date()
