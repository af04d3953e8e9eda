"""What an engine's speed was like, learned from how far it had come at each look.

An engine is not a number: it differs from night to night, slows down for other users at their hours, stands still at
times, and dies. Each of these is learned apart, recent nights first, so that one bad night is neither the rule nor
forgotten.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import date, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import HOUR, MINUTE
from orchestrator.policy.forecast.observed_nights import (
    HALF,
    WELL,
    NightSeen,
    Stint,
    coarse,
    in_work,
    median,
    night_of,
    quantile,
)
from orchestrator.policy.forecast.paces import ASSUMED_OUTAGE, LEAST_SPREAD, Pace
from orchestrator.policy.forecast.words import source

ENOUGH_NIGHTS = 10
ASSUMED_DRIFT = 0.15
"""How far a rate moves in a night, where nothing is known of it."""
_NIGHTS_SPREAD = 0.25
_PRIOR_NIGHTS = 2.0
_FADE = 0.88
"""What each newer night leaves of the weight of those before it."""
_RARE_FADE = 0.97
_IDLE_HALF_LIFE = 14.0
"""Nights without rows after which a night before them weighs half: what nobody used may have changed."""
_ASSUMED_WEIGHT = 0.01
"""The weight of the assumed rate, in nights, where idle time has left nothing of them; 0 where there was none."""
_LEAST_WEIGHT = 1e-9
_UNLIKE = 0.3
"""What a night of other rows weighs, and how much less sure it makes."""
_OUTLYING, _LEAST_SCALE = 2.5, 0.1
_PRIOR_PIECES, _MOST_PIECES = 4.0, 6.0
_HAZARDS = tuple(2e-5 * 2.0**step for step in range(18))
_RARE = 0.9
"""How much rarer engines are that fail often: by this power of how often."""
_PLAIN = 0.15
"""Smaller differences between hours of the day are taken for none."""
_CHANGE_NIGHTS = 2
"""So many nights that agree, and not with those before, show that an hour of the day has changed."""
_MEMORY = 4.0 * MINUTE
"""Half of what counts for the rate of now is as old as this, or older."""
_FORGOTTEN = 0.001
_BURSTS = 4.0
"""Rows come in bursts: their number is as uncertain as that of so many times fewer."""
_STILL_ROWS, _STILL_SECONDS = 20.0, 2 * MINUTE
"""Where so many rows were to be expected and none came for so long, it stands still."""


_FORGIVEN = timedelta(minutes=20)
"""What stood still when it was seen last, so long ago, may be well again."""


class Speeds(Struct, frozen=True):
    """What was learned of an engine: the rate of each night, newest first, with its weight, in work a second as if it
    were the usual hour; the factor of each hour of the day (UTC); how far it moves in a night.

    `unfaded` is what the nights would weigh together had there been no idle time after them.
    `outages` were seen in so many `watched` hours, `out` seconds long together; `over` of them ended. With `counted`,
    work is tokens, else rows.
    """

    nights: tuple[tuple[float, float], ...] = ()
    unfaded: float = 0.0
    hours: tuple[float, ...] = (1.0,) * 24
    drift: float = ASSUMED_DRIFT
    outages: float = 0.0
    watched: float = 0.0
    out: float = ASSUMED_OUTAGE
    over: float = 1.0
    alike: float = 1.0
    counted: bool = False

    @property
    def hazard(self) -> float:
        """Outages an hour: the mean of what may be, of engines that never fail to such that do every few minutes."""
        odds = [math.pow(rate, self.outages - _RARE) * math.exp(-rate * self.watched) for rate in _HAZARDS]
        return sum(rate * each for rate, each in zip(_HAZARDS, odds, strict=True)) / sum(odds)

    @property
    def often(self) -> float:
        """Outages an hour, as they were seen."""
        return self.outages / self.watched if self.watched else 0.0

    @property
    def outage(self) -> float:
        """How long one lasts, in seconds."""
        return self.out / self.over


GUESS, STATED, BENCH = "assumed", "stated", "from a bench"
"""Where the rate of an engine comes from that has had no night."""


class Assumed(Struct, frozen=True):
    """What is taken for an engine's rate, in rows a second, before it was measured, and which of the above it is."""

    rate: float
    spread: float
    source: str = GUESS


def learn(stints: Sequence[Stint], now: datetime) -> Speeds:
    """What the stints of earlier nights tell, in their order, none over another."""
    counted = any(one.tokens > 0 for one in stints) and all(one.tokens > 0 for one in stints if one.rows > 0)
    nights: dict[date, list[Stint]] = defaultdict(list)
    for one in in_work(stints, 0.0, counted=counted):
        if one.seconds > 0 and night_of(one.begin) < night_of(now):
            nights[night_of(one.begin)].append(one)
    dates = sorted(nights, reverse=True)
    past = [coarse(nights[night]) for night in dates]
    hours = _hours(past)
    told = [NightSeen.of(stints_of, hours) for stints_of in past]
    aged = [_aged((night_of(now) - date).days - 1 - newer) for newer, date in enumerate(dates)]
    well = [one for one in told if one.rate > 0]
    rates, bad = _levels(well, [age for age, one in zip(aged, told, strict=True) if one.rate > 0])
    weighed = sum(weight for _, weight in rates)
    alike = sum(one.alike * weight for one, (_, weight) in zip(well, rates, strict=True)) / weighed if well else 1.0
    unfaded = sum(_weight(one, newer) for newer, one in enumerate(well))
    speeds = Speeds(tuple(rates), unfaded, hours, _drift(well), alike=alike, counted=counted)
    is_bad = iter(bad)
    for newer, night in enumerate(told):
        speeds = _with(speeds, night, _RARE_FADE**newer, is_bad=night.rate > 0 and next(is_bad))
    return speeds


def _with(speeds: Speeds, told: NightSeen, weight: float, *, is_bad: bool = False) -> Speeds:
    """The same with the outages of one more night; a bad one was an outage as a whole."""
    return replace(
        speeds,
        outages=speeds.outages + weight * (len(told.outages) + is_bad),
        watched=speeds.watched + weight * told.hours,
        out=speeds.out + weight * (sum(seconds for seconds, _ in told.outages) + is_bad * told.hours * HOUR),
        over=speeds.over + weight * sum(ended for _, ended in told.outages),
    )


def pace(
    speeds: Speeds,
    assumed: Assumed,
    *,
    today: Sequence[Stint] = (),
    now: datetime,
    tokens: float = 1.0,
    ahead: float = 0.0,
    start: float = 0.0,
) -> Pace:
    """What to expect of an engine from now on, in rows a second, where a row is so many tokens.

    `assumed` is in rows a second; `today` are the stints of the night so far.
    """
    a_row = tokens if speeds.counted and tokens > 0 else 1.0
    tonight = in_work([one for one in today if one.seconds > 0], a_row, counted=speeds.counted)
    if tonight:
        speeds = _with(speeds, NightSeen.of(coarse(tonight), speeds.hours), 1.0)
    usual = _usual(speeds, assumed, now, a_row, ahead, start)
    still = _still(tonight, now)
    if still >= _STILL_SECONDS and still * usual.rate >= _STILL_ROWS:
        return usual.now(0.0, still)
    work, rows, seconds = _recent(_worked(tonight, now))
    if rows <= 0:
        return usual  # nothing was to be expected yet
    rate, noise = work / seconds / a_row, math.sqrt(_BURSTS / max(rows, 0.5))
    return usual.now(rate, 10 * MINUTE, noise=max(noise, LEAST_SPREAD) / 2, drift=speeds.drift)


def _still(tonight: Sequence[Stint], now: datetime) -> float:
    """For how many seconds nothing has come, as long as that is still seen."""
    if not tonight or now - tonight[-1].end > _FORGIVEN:
        return 0.0
    total = 0.0
    for one in reversed(tonight):
        if one.rows > 0:
            break
        total += one.seconds
    return total


def _usual(speeds: Speeds, assumed: Assumed, now: datetime, a_row: float, ahead: float, start: float) -> Pace:
    steps = _steps(speeds.hours, now)
    if not speeds.nights:
        return Pace(
            assumed.rate, assumed.spread, assumed.source, ahead, start, speeds.hazard, speeds.outage, steps,
            often=speeds.often,
        )  # fmt: skip
    whole, unfaded = sum(weight for _, weight in speeds.nights), speeds.unfaded
    mean = sum(weight * math.log(rate) for rate, weight in speeds.nights) / whole
    apart, nights = _apart(speeds.nights)
    idle = whole / unfaded
    left = whole / (whole + _ASSUMED_WEIGHT * max(0.0, 1.0 - idle))
    if (weight := _evidence(assumed, len(speeds.nights))) > 0:
        reach = _OUTLYING * math.sqrt(_variance(apart, nights, unfaded))
        off = min(max(math.log(assumed.rate * a_row) - mean, -reach), reach)
        apart += weight * unfaded / (unfaded + weight) * off**2
        mean += weight / (whole + weight) * off
        whole, unfaded, nights = whole + weight, unfaded + weight, nights + weight
    unlike = (1.0 - speeds.alike) * _UNLIKE**2
    # Idle time makes nights less sure, but no less sure than a rate that nobody has seen.
    bound = max(_variance(apart, nights, unfaded), assumed.spread**2)
    variance = min(_variance(idle * apart, idle * nights, whole), bound) + unlike
    level = left * mean + (1.0 - left) * math.log(assumed.rate * a_row) if assumed.rate > 0 else mean
    variance = left * variance + (1.0 - left) * assumed.spread**2
    count = len(speeds.nights)
    rate = math.exp(level) * speeds.hours[now.hour] / a_row
    return Pace(
        rate, max(LEAST_SPREAD, math.sqrt(variance)), source(count, "nights", ENOUGH_NIGHTS), ahead, start,
        speeds.hazard, speeds.outage, steps, count >= ENOUGH_NIGHTS, speeds.often,
    )  # fmt: skip


def _evidence(assumed: Assumed, count: int) -> float:
    """What a rate that was stated, or measured by a bench, weighs beside so many nights: as the oldest of them, the
    surer the more. A guess is no evidence."""
    if assumed.rate <= 0 or assumed.source == GUESS:
        return 0.0
    return max(0.0, 1.0 - assumed.spread) * math.pow(_FADE, count)


def _variance(apart: float, nights: float, whole: float) -> float:
    """The variance of the next night's logarithm, by the sum of squares of so many nights around what was expected.

    `whole` is the weight of the nights that say what is expected. Of so few nights neither the mean nor the spread is
    sure: about that of Student's distribution.
    """
    counted = _PRIOR_NIGHTS + nights
    return (_PRIOR_NIGHTS * _NIGHTS_SPREAD**2 + apart) / counted * (1 + 1 / whole) * (1 + 2 / counted)


def _apart(nights: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The sum of squares by which nights differed from what those before them let expect, and of how many nights.

    How far nights differ changes far more slowly than how fast an engine is: older nights count for longer here.
    """
    newest = nights[0][1]
    squares = count = 0.0
    mean, whole = math.log(nights[-1][0]), 0.0
    for older, (rate, weight) in zip(range(len(nights) - 1, -1, -1), reversed(nights), strict=True):
        off = math.log(rate) - mean
        counts = weight / newest / math.pow(_FADE, older) * math.pow(_RARE_FADE, older)
        if whole:
            squares += counts * off**2 / (1 + newest * math.pow(_FADE, older) / whole)
        count += counts
        whole += weight
        mean += weight / whole * off
    return squares, count


def _steps(hours: Sequence[float], now: datetime) -> tuple[tuple[float, float], ...]:
    """How the rate of the hours to come differs from that of this hour."""
    if all(factor == 1.0 for factor in hours):
        return ()
    base, last, found = hours[now.hour], 1.0, []
    begin = now.replace(minute=0, second=0, microsecond=0)
    for later in range(1, 25):
        at = begin + timedelta(hours=later)
        factor = hours[at.hour] / base
        if factor != last:
            found.append(((at - now).total_seconds(), factor))
            last = factor
    return tuple(found)


def _worked(tonight: Sequence[Stint], now: datetime) -> Sequence[Stint]:
    """The stints of tonight, up to the last with rows where a standstill at their end is long ago."""
    if not tonight or now - tonight[-1].end <= _FORGIVEN:
        return tonight
    last = max((place for place, one in enumerate(tonight) if one.rows > 0), default=-1)
    return tonight[: last + 1]


def _recent(today: Sequence[Stint]) -> tuple[float, float, float]:
    """Work, rows and seconds of the last minutes in which it had rows, what was before fading away.

    While it is idle nothing is forgotten: what it did in the evening tells most of the same night.
    """
    work = rows = seconds = 0.0
    for one in reversed(today):
        # Fading within a long stint counts too: only its last part is recent.
        length = one.seconds
        weight = 0.5 ** ((today[-1].end - one.end).total_seconds() / _MEMORY) * min(1.0, 2 * _MEMORY / length)
        if weight < _FORGOTTEN:
            break
        work, rows, seconds = work + weight * one.work, rows + weight * one.rows, seconds + weight * length
    return work, rows, seconds


# --- learning


def _drift(told: Sequence[NightSeen]) -> float:
    """How far rates move in a night: the spread of its pieces."""
    off, count = _PRIOR_PIECES * ASSUMED_DRIFT**2, _PRIOR_PIECES
    for newer, one in enumerate(told):
        if one.apart:
            many = len(one.apart)
            weight = _RARE_FADE**newer * min(1.0, _MOST_PIECES / many)
            off += weight * sum(each * each for each in one.apart)
            count += weight * (many - 1)
    return max(LEAST_SPREAD, math.sqrt(off / count))


def _aged(idle: int) -> float:
    """What a night still weighs after which an engine was not used on so many."""
    return max(_LEAST_WEIGHT, math.pow(0.5, idle / _IDLE_HALF_LIFE))


def _weight(night: NightSeen, newer: int) -> float:
    """What a night weighs that so many newer ones follow, without idle time."""
    return math.pow(_FADE, newer) * (_UNLIKE + (1.0 - _UNLIKE) * night.alike)


def _levels(told: Sequence[NightSeen], aged: Sequence[float]) -> tuple[list[tuple[float, float]], list[bool]]:
    """The rate of each night, newest first, with its weight; what is far off counts as far as it may. And which
    nights were bad: far slower than the others."""
    if not told:
        return [], []
    weights = [age * _weight(one, newer) for newer, (one, age) in enumerate(zip(told, aged, strict=True))]
    logs = [math.log(one.rate) for one in told]
    middle = median(list(zip(logs, weights, strict=True)))
    apart = median([(abs(log - middle), weight) for log, weight in zip(logs, weights, strict=True)])
    reach = _OUTLYING * max(_LEAST_SCALE, 1.4826 * apart)
    rates = [
        (math.exp(min(max(log, middle - reach), middle + reach)), weight)
        for log, weight in zip(logs, weights, strict=True)
    ]
    return rates, [log < middle - max(reach, -math.log(HALF)) for log in logs]


def _hours(nights: Sequence[Sequence[Stint]]) -> tuple[float, ...]:
    """By how much each hour of the day differs from the others of its night, where several nights say so."""
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for newer, stints in enumerate(nights):
        level = quantile([(one.rate, one.seconds) for one in stints], WELL)
        by_hour: dict[int, list[Stint]] = defaultdict(list)
        for one in stints:
            by_hour[one.begin.hour].append(one)
        if level <= 0 or len(by_hour) < 2:
            continue
        for hour, found in by_hour.items():
            seconds = sum(one.seconds for one in found)
            if seconds >= 10 * MINUTE:
                rate = sum(one.work for one in found) / seconds
                seen[hour].append((math.log(max(rate / level, 0.05)), _FADE**newer))
    return tuple(_factor(seen.get(hour, ())) for hour in range(24))


def _since_change(seen: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """The effects since an hour changed: where the last nights agree with one another and not with those before."""
    if len(seen) < _CHANGE_NIGHTS + 1:
        return seen
    newest = [effect for effect, _ in seen[:_CHANGE_NIGHTS]]
    reach = max(_PLAIN, max(newest) - min(newest))
    now = sum(newest) / len(newest)
    for place in range(_CHANGE_NIGHTS, len(seen)):
        if abs(seen[place][0] - now) > 2 * reach:
            return seen[:place]
    return seen


def _factor(seen: Sequence[tuple[float, float]]) -> float:
    """The factor of an hour, by its effect on each night, the newest first, with its weight."""
    if len(seen) < 2:
        return 1.0
    seen = _since_change(seen)
    effect = median(list(seen))
    count = sum(weight for _, weight in seen)
    effect *= count / (count + 0.5)
    return math.exp(effect) if abs(effect) >= _PLAIN else 1.0
