"""Speed of an engine, learned from its progress on earlier nights and tonight.

The model has a level per night, a profile by hour of day, a drift within the night, and outages. Each part is
estimated separately, with exponential decay. So one bad night neither sets the forecast nor is forgotten.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import HOUR, MINUTE
from orchestrator.policy.forecast.observed_nights import (
    LEVEL_QUANTILE,
    OUTAGE_LEVEL,
    NightSeen,
    Stint,
    in_common_unit,
    in_windows,
    mean_rate,
    median,
    night_of,
    quantile,
)
from orchestrator.policy.forecast.paces import ASSUMED_OUTAGE, LEAST_SPREAD, Pace
from orchestrator.policy.forecast.warm_ups import WarmUp, age, warm_up
from orchestrator.policy.forecast.words import source

ENOUGH_NIGHTS = 10
"""From this number of nights on, the forecast's source text no longer mentions the prior."""
ASSUMED_DRIFT = 0.15
"""Prior spread of a rate within a night: the standard deviation of its logarithm."""
_NIGHTS_SPREAD = 0.25
"""Prior spread of a rate between nights: the standard deviation of its logarithm."""
_PRIOR_NIGHTS = 2.0
"""Weight of `_NIGHTS_SPREAD`, in nights."""
_DECAY = 0.88
"""Exponential decay weight of rates: each newer night multiplies the weight of all older ones by this."""
_SLOW_DECAY = 0.97
"""Exponential decay weight of outages, drift and the spread between nights, which change more slowly than rates."""
_IDLE_HALF_LIFE = 14.0
"""Number of nights without rows that halves the weight of all earlier nights: an unused engine may have changed."""
_IDLE_VARIANCE, _IDLE_PRIOR_NIGHTS = 0.02, 14.0
"""Prior variance that a night without rows adds to a rate's logarithm, and this prior's weight, in such nights."""
_ASSUMED_WEIGHT = 0.01
"""Largest weight of the assumed rate, in nights.

The weight grows with the number of nights without rows since the observations. It is 0 if there were no such nights.
"""
_MIN_WEIGHT = 1e-9
_OTHER_SERIES = 0.3
"""Weight of a night that has only rows of other job series, and the spread that rows of other series add."""
_OUTLIER_SIGMAS, _MIN_SIGMA = 2.5, 0.1
"""Nights further from the median than `_OUTLIER_SIGMAS` robust standard deviations are winsorized.

`_MIN_SIGMA` is the lower bound of that standard deviation.
"""
_PRIOR_PIECES, _MAX_PIECES = 4.0, 6.0
"""Weight of the prior drift, and the largest weight of a night, in windows."""
_HAZARDS = tuple(2e-5 * 2.0**step for step in range(18))
"""Grid of hazards, in outages per hour, on which the prior is defined."""
_HAZARD_PRIOR_POWER = 0.9
"""Exponent p of the hazard's prior: the weight of a hazard h is h ** -p, because frequent failures are rare."""
_MIN_EFFECT = 0.15
"""Smallest effect of an hour of day, as the logarithm of its factor. A smaller effect is ignored."""
_CHANGE_NIGHTS = 2
"""Number of newest nights that define an hour's present effect. An older night that differs is before a change."""
_RECENT_HALF_LIFE = 4.0 * MINUTE
"""Half-life, in seconds, of the weights in tonight's rate."""
_MIN_RECENT_WEIGHT = 0.001
_BURST_SIZE = 4.0
"""Rows finish in bursts of this size. So the variance of their count is this many times the Poisson variance."""
_STANDSTILL_ROWS, _STANDSTILL_SECONDS = 20.0, 2 * MINUTE
"""An engine stands still if it finishes no row for the longer of two times.

The times are `_STANDSTILL_SECONDS`, and the usual time of `_STANDSTILL_ROWS` rows.
"""
_MAX_GAP = timedelta(minutes=1)
"""Longest gap between two stints of one standstill. Stints with a longer gap are separate observations."""
_LIKELY = 0.5
"""If a standstill is more likely than this, the median rate is 0."""


class Speeds(Struct, frozen=True):
    """Statistics of the earlier nights of an engine.

    `nights` are (rate, weight) of nights with normal work, newest first. Rates are in work per second, with the
    hourly profile removed. `idle` has, for each of these nights, the number of nights without rows since then.
    `by_date` has the mean rate of every night, outages included. `unfaded` is the total weight of `nights`, not
    reduced for idle time. `hours` is the hourly profile: 24 factors (UTC). `drift` is the spread within a night.
    `warm_up` is the slower rate after a start.

    `outages` is the number of outages in `watched` hours, and older nights weigh less. `outage_seconds` is their
    total length, and `ended_outages` the number of outages that ended. `outage_seconds` and `ended_outages` include
    one assumed outage. `alike` is the share of the work from the forecast's own job series. Work is in tokens if
    `counted`, otherwise in rows.
    """

    nights: tuple[tuple[float, float], ...] = ()
    idle: tuple[int, ...] = ()
    by_date: Mapping[date, float] = {}
    unfaded: float = 0.0
    hours: tuple[float, ...] = (1.0,) * 24
    drift: float = ASSUMED_DRIFT
    outages: float = 0.0
    watched: float = 0.0
    outage_seconds: float = ASSUMED_OUTAGE
    ended_outages: float = 1.0
    alike: float = 1.0
    counted: bool = False
    warm_up: WarmUp = WarmUp()

    @property
    def hazard(self) -> float:
        """Posterior mean of outages per hour: Poisson likelihood on a grid, with a power-law prior."""
        odds = [
            math.pow(rate, self.outages - _HAZARD_PRIOR_POWER) * math.exp(-rate * self.watched) for rate in _HAZARDS
        ]
        return sum(rate * each for rate, each in zip(_HAZARDS, odds, strict=True)) / sum(odds)

    @property
    def observed_hazard(self) -> float:
        """Observed outages per hour."""
        return self.outages / self.watched if self.watched else 0.0

    @property
    def outage(self) -> float:
        """Mean length of an outage, in seconds: time out of service per ended outage."""
        return self.outage_seconds / self.ended_outages

    def lasts(self, seconds: float) -> float:
        """Return P(an outage lasts `seconds` longer): exponential lengths, whose rate has a gamma posterior."""
        return math.pow(1.0 + seconds / self.outage_seconds, -self.ended_outages)


GUESS, STATED, BENCH = "assumed", "stated", "from a bench"
"""Sources of an engine's rate before its first night: a guess, the configuration, or a bench measurement."""


class Assumed(Struct, frozen=True):
    """Rate of an engine before its first night, in rows a second, with its spread and its source."""

    rate: float
    spread: float
    source: str = GUESS


def learn(stints: Sequence[Stint], now: datetime) -> Speeds:
    """Learn an engine's speed from the stints of nights before `now`. The stints are sorted and do not overlap."""
    counted = any(one.tokens > 0 for one in stints) and all(one.tokens > 0 for one in stints if one.rows > 0)
    nights: dict[date, list[Stint]] = defaultdict(list)
    for one in in_common_unit(stints, 0.0, counted=counted):
        if one.seconds > 0 and night_of(one.begin) < night_of(now):
            nights[night_of(one.begin)].append(one)
    dates = sorted(nights, reverse=True)
    past = [in_windows(nights[night]) for night in dates]
    warms = warm_up(past)
    past = [warms.at_usual_rate(windows, _level(windows)) for windows in past]
    hours = _hourly_profile(past)
    nights_seen = [NightSeen.of(stints_of, hours) for stints_of in past]
    idle_nights = [(night_of(now) - date).days - 1 - newer for newer, date in enumerate(dates)]
    running = [one for one in nights_seen if one.rate > 0]
    idle = [count for count, one in zip(idle_nights, nights_seen, strict=True) if one.rate > 0]
    rates, bad = _winsorized_rates(running, [_idle_weight(count) for count in idle])
    total = sum(weight for _, weight in rates)
    alike = (
        sum(one.alike * weight for one, (_, weight) in zip(running, rates, strict=True)) / total if running else 1.0
    )
    unfaded = sum(_night_weight(one, newer) for newer, one in enumerate(running))
    speeds = Speeds(
        tuple(rates), tuple(idle), {night: mean_rate(stints) for night, stints in nights.items()}, unfaded, hours,
        _drift(running), alike=alike, counted=counted, warm_up=warms,
    )  # fmt: skip
    is_bad = iter(bad)
    for newer, night in enumerate(nights_seen):
        speeds = _add_outages(speeds, night, _SLOW_DECAY**newer, is_bad=night.rate > 0 and next(is_bad))
    return speeds


def _add_outages(speeds: Speeds, night: NightSeen, weight: float, *, is_bad: bool = False) -> Speeds:
    """Add the outages of a night. A bad night counts as one more outage for its whole length."""
    return replace(
        speeds,
        outages=speeds.outages + weight * (len(night.outages) + is_bad),
        watched=speeds.watched + weight * night.hours,
        outage_seconds=speeds.outage_seconds
        + weight * (sum(seconds for seconds, _ in night.outages) + is_bad * night.hours * HOUR),
        ended_outages=speeds.ended_outages + weight * sum(ended for _, ended in night.outages),
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
    answered: datetime | None = None,
) -> Pace:
    """Return the forecast from now on, in rows a second, for rows of `tokens` tokens each.

    `assumed` is in rows a second. `today` has tonight's stints. `answered` is the last time at which a row is known
    to be done, which ends a standstill.
    """
    a_row = tokens if speeds.counted and tokens > 0 else 1.0
    tonight = in_common_unit([one for one in today if one.seconds > 0], a_row, counted=speeds.counted)
    start += speeds.warm_up.lost_seconds(age(tonight, now))
    if tonight and speeds.warm_up.slowest:
        usual = _prior_pace(speeds, assumed, now, a_row, ahead, start)
        tonight = speeds.warm_up.at_usual_rate(tonight, usual.rate * a_row)
    if tonight:
        speeds = _add_outages(speeds, NightSeen.of(in_windows(tonight), speeds.hours), 1.0)
    usual = _prior_pace(speeds, assumed, now, a_row, ahead, start)
    least = max(_STANDSTILL_SECONDS, _STANDSTILL_ROWS / usual.rate) if usual.rate > 0 else math.inf
    tonight, stood_at = _split_standstill(tonight, least, answered)
    if stood_at is not None:
        # Elapsed time alone does not end a standstill: earlier outages show how P(it continues) falls.
        stands = speeds.lasts((now - stood_at).total_seconds())
        if stands > _LIKELY:
            return usual.now(0.0, least)
        usual = replace(usual, stands=stands)
    work, rows, seconds = _recent_work(tonight)
    if rows <= 0:
        return usual  # too early to expect rows
    rate, noise = work / seconds / a_row, math.sqrt(_BURST_SIZE / max(rows, 0.5))
    return usual.now(rate, 10 * MINUTE, noise=max(noise, LEAST_SPREAD) / 2, drift=speeds.drift)


def _split_standstill(
    tonight: Sequence[Stint], least: float, answered: datetime | None
) -> tuple[list[Stint], datetime | None]:
    """Return tonight's stints without standstills, and the last time at which a present standstill was observed.

    A standstill lasts `least` seconds or more. The time is None if the engine does not stand still now. The stint in
    which an engine finishes rows again belongs to the standstill.
    """
    working: list[Stint] = []
    idle: list[Stint] = []
    for one in tonight:
        if one.rows <= 0:
            idle.append(one)
            continue
        if _seconds(idle) < least:
            working += [*idle, one]
        idle = []
    since = [one for one in idle if answered is None or one.end > answered]
    # The first seconds after rows were sent again do not confirm a standstill.
    confirmed = [piece for piece in _in_pieces(since) if _seconds(piece) >= least]
    if confirmed:
        return working, confirmed[-1][-1].end
    return [*working, *since], None


def _in_pieces(stints: Iterable[Stint]) -> list[list[Stint]]:
    pieces: list[list[Stint]] = []
    for one in stints:
        if pieces and one.begin - pieces[-1][-1].end <= _MAX_GAP:
            pieces[-1].append(one)
        else:
            pieces.append([one])
    return pieces


def _seconds(stints: Iterable[Stint]) -> float:
    return sum(one.seconds for one in stints)


def _prior_pace(speeds: Speeds, assumed: Assumed, now: datetime, a_row: float, ahead: float, start: float) -> Pace:
    steps = _hourly_steps(speeds.hours, now)
    if not speeds.nights:
        return Pace(
            assumed.rate, assumed.spread, assumed.source, ahead, start, speeds.hazard, speeds.outage, steps,
            observed_hazard=speeds.observed_hazard,
        )  # fmt: skip
    total, unfaded = sum(weight for _, weight in speeds.nights), speeds.unfaded
    mean = sum(weight * math.log(rate) for rate, weight in speeds.nights) / total
    squares, nights, changes = _squared_deviations(speeds.nights, speeds.idle)
    idle = total / unfaded
    evidence = total / (total + _ASSUMED_WEIGHT * max(0.0, 1.0 - idle))
    if (weight := _assumed_weight(assumed, len(speeds.nights))) > 0:
        # A stated or benched rate counts like one more night, and is winsorized like a night.
        reach = _OUTLIER_SIGMAS * math.sqrt(_variance(squares, nights, unfaded))
        deviation = min(max(math.log(assumed.rate * a_row) - mean, -reach), reach)
        squares += weight * unfaded / (unfaded + weight) * deviation**2
        mean += weight / (total + weight) * deviation
        total, unfaded, nights = total + weight, unfaded + weight, nights + weight
    other_series = (1.0 - speeds.alike) * _OTHER_SERIES**2
    # Idle time widens the forecast, up to that of an engine without history.
    bound = max(_variance(squares, nights, unfaded), assumed.spread**2)
    widened = _variance(idle * squares, idle * nights, total) + changes * speeds.idle[0]
    variance = min(widened, bound) + other_series
    level = evidence * mean + (1.0 - evidence) * math.log(assumed.rate * a_row) if assumed.rate > 0 else mean
    variance = evidence * variance + (1.0 - evidence) * assumed.spread**2
    count = len(speeds.nights)
    rate = math.exp(level) * speeds.hours[now.hour] / a_row
    return Pace(
        rate, max(LEAST_SPREAD, math.sqrt(variance)), source(count, "nights", ENOUGH_NIGHTS), ahead, start,
        speeds.hazard, speeds.outage, steps, count >= ENOUGH_NIGHTS, speeds.observed_hazard,
    )  # fmt: skip


def _assumed_weight(assumed: Assumed, count: int) -> float:
    """Return the weight of a stated or measured rate, in nights.

    The rate weighs as much as one more night, older than all observed nights. It weighs less if its spread is wide. A
    guess weighs 0.
    """
    if assumed.rate <= 0 or assumed.source == GUESS:
        return 0.0
    return max(0.0, 1.0 - assumed.spread) * math.pow(_DECAY, count)


def _variance(squares: float, nights: float, total: float) -> float:
    """Return the predictive variance of the next night's log rate.

    `squares` is the weighted sum of squared deviations over `nights` nights. `total` is the weight behind the mean.
    The factors (1 + 1/n)(1 + 2/n) widen the variance for few nights, about as Student's t does.
    """
    counted = _PRIOR_NIGHTS + nights
    return (_PRIOR_NIGHTS * _NIGHTS_SPREAD**2 + squares) / counted * (1 + 1 / total) * (1 + 2 / counted)


def _squared_deviations(nights: Sequence[tuple[float, float]], idle: Sequence[int]) -> tuple[float, float, float]:
    """Return three figures of the spread between nights.

    - the weighted sum of squared errors, if each night is forecast from earlier nights
    - the weighted number of nights
    - the variance that a night without rows adds

    The spread between nights changes more slowly than the level. So the weight of old nights decays more slowly here.
    """
    newest = nights[0][1]
    squares = count = 0.0
    changes, idle_nights = _IDLE_PRIOR_NIGHTS * _IDLE_VARIANCE, _IDLE_PRIOR_NIGHTS
    mean, total = math.log(nights[-1][0]), 0.0
    for older, (rate, weight) in zip(range(len(nights) - 1, -1, -1), reversed(nights), strict=True):
        deviation = math.log(rate) - mean
        counts = weight / newest / math.pow(_DECAY, older) * math.pow(_SLOW_DECAY, older)
        if total:
            squares += counts * deviation**2 / (1 + newest * math.pow(_DECAY, older) / total)
            if gap := idle[older + 1] - idle[older]:
                changes, idle_nights = changes + deviation**2, idle_nights + gap
        count += counts
        total += weight
        mean += weight / total * deviation
    return squares, count, changes / idle_nights


def _hourly_steps(hours: Sequence[float], now: datetime) -> tuple[tuple[float, float], ...]:
    """Return the profile of the next 24 hours, relative to this hour, as (seconds from now, factor)."""
    if all(factor == 1.0 for factor in hours):
        return ()
    base, previous, steps = hours[now.hour], 1.0, []
    begin = now.replace(minute=0, second=0, microsecond=0)
    for later in range(1, 25):
        at = begin + timedelta(hours=later)
        factor = hours[at.hour] / base
        if factor != previous:
            steps.append(((at - now).total_seconds(), factor))
            previous = factor
    return tuple(steps)


def _recent_work(today: Sequence[Stint]) -> tuple[float, float, float]:
    """Return the work, rows and seconds of tonight's stints, where older stints weigh less.

    A weight depends on the time between a stint and the newest stint, not on the time since then. The evening's rate
    is still the best evidence later that night.
    """
    work = rows = seconds = 0.0
    for one in reversed(today):
        # Only the last part of a long stint is recent.
        length = one.seconds
        weight = 0.5 ** ((today[-1].end - one.end).total_seconds() / _RECENT_HALF_LIFE) * min(
            1.0, 2 * _RECENT_HALF_LIFE / length
        )
        if weight < _MIN_RECENT_WEIGHT:
            break
        work, rows, seconds = work + weight * one.work, rows + weight * one.rows, seconds + weight * length
    return work, rows, seconds


# --- learning


def _drift(nights_seen: Sequence[NightSeen]) -> float:
    squares, count = _PRIOR_PIECES * ASSUMED_DRIFT**2, _PRIOR_PIECES
    for newer, one in enumerate(nights_seen):
        if one.deviations:
            count_of_night = len(one.deviations)
            weight = _SLOW_DECAY**newer * min(1.0, _MAX_PIECES / count_of_night)
            squares += weight * sum(each * each for each in one.deviations)
            count += weight * (count_of_night - 1)
    return max(LEAST_SPREAD, math.sqrt(squares / count))


def _idle_weight(idle: int) -> float:
    return max(_MIN_WEIGHT, math.pow(0.5, idle / _IDLE_HALF_LIFE))


def _night_weight(night: NightSeen, newer: int) -> float:
    return math.pow(_DECAY, newer) * (_OTHER_SERIES + (1.0 - _OTHER_SERIES) * night.alike)


def _winsorized_rates(
    nights_seen: Sequence[NightSeen], idle_weights: Sequence[float]
) -> tuple[list[tuple[float, float]], list[bool]]:
    """Return the (rate, weight) of each night, and True for each bad night. Both lists run from the newest night.

    Outliers are winsorized by the median absolute deviation. A bad night is far slower than the others.
    """
    if not nights_seen:
        return [], []
    weights = [
        age * _night_weight(one, newer)
        for newer, (one, age) in enumerate(zip(nights_seen, idle_weights, strict=True))
    ]
    logs = [math.log(one.rate) for one in nights_seen]
    middle = median(list(zip(logs, weights, strict=True)))
    deviation = median([(abs(log - middle), weight) for log, weight in zip(logs, weights, strict=True)])
    reach = _OUTLIER_SIGMAS * max(_MIN_SIGMA, 1.4826 * deviation)
    rates = [
        (math.exp(min(max(log, middle - reach), middle + reach)), weight)
        for log, weight in zip(logs, weights, strict=True)
    ]
    return rates, [log < middle - max(reach, -math.log(OUTAGE_LEVEL)) for log in logs]


def _level(stints: Sequence[Stint]) -> float:
    return quantile([(one.rate, one.seconds) for one in stints], LEVEL_QUANTILE)


def _hourly_profile(nights: Sequence[Sequence[Stint]]) -> tuple[float, ...]:
    seen: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for newer, stints in enumerate(nights):
        level = _level(stints)
        by_hour: dict[int, list[Stint]] = defaultdict(list)
        for one in stints:
            if one.rows > 0:  # a standstill is an outage, not an effect of its hour
                by_hour[one.begin.hour].append(one)
        if level <= 0 or len(by_hour) < 2:
            continue
        for hour, hour_stints in by_hour.items():
            seconds = sum(one.seconds for one in hour_stints)
            if seconds >= 10 * MINUTE:
                rate = sum(one.work for one in hour_stints) / seconds
                seen[hour].append((math.log(max(rate / level, 0.05)), _DECAY**newer))
    return tuple(_hour_factor(seen.get(hour, ())) for hour in range(24))


def _since_change(seen: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return the effects of an hour of day since its last change, newest first.

    The newest `_CHANGE_NIGHTS` effects define the present effect. The first older effect that differs clearly from it
    is before the change.
    """
    if len(seen) < _CHANGE_NIGHTS + 1:
        return seen
    newest = [effect for effect, _ in seen[:_CHANGE_NIGHTS]]
    reach = max(_MIN_EFFECT, max(newest) - min(newest))
    now = sum(newest) / len(newest)
    for place in range(_CHANGE_NIGHTS, len(seen)):
        if abs(seen[place][0] - now) > 2 * reach:
            return seen[:place]
    return seen


def _hour_factor(seen: Sequence[tuple[float, float]]) -> float:
    if len(seen) < 2:
        return 1.0
    seen = _since_change(seen)
    effect = median(list(seen))
    count = sum(weight for _, weight in seen)
    effect *= count / (count + 0.5)
    return math.exp(effect) if abs(effect) >= _MIN_EFFECT else 1.0
