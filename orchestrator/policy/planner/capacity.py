"""Capacity of synchronous options: rows done by a time, their cost and their risk. Times are seconds from now.

Paces are uncertain. `sure` figures take the low quantile of every pace at once. This is safe if engines are slow
together, and sums stay monotone in time and in the number of routes. In addition, one engine at a time may fail
(`risk`). The deadline is at risk unless the other options can do that engine's rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from decimal import Decimal

from msgspec import Struct

from orchestrator.core.durations import HOUR
from orchestrator.policy.forecast import NORMAL
from orchestrator.policy.planner.types import Claim, SynchronousOption

KNOWN_RISK_SHARE = 1 / 3
"""Share of the allowed P(failure) that forecasts may use. The rest covers model error."""
MIN_LIKELY = 0.25
"""Lower bound of a reroute's probability. A rarer reroute must be as sure as a reroute with this probability."""
DETECTION_SECONDS = 600.0
"""Seconds until orch detects a standstill and moves the engine's rows to other backends."""
REPLAN_SECONDS = 60.0
"""Seconds in which one or two replannings show that an option will not finish its last rows."""
GIVE_UP_SECONDS = 120.0
"""Seconds from the time orch stops waiting for a batch until the batch's rows are free."""
NEGLIGIBLE = 1e-5
"""Probabilities up to this count as 0."""
MAX_OUTAGES = 16
"""An engine with this many outages before the deadline counts as missing the deadline."""
_EXPECTED_OUTAGES = -math.log(0.95)
"""Expected number of outages at which P(no outage) is 95 %."""
HOPEFUL_SIGMAS = 1.28
"""Standard deviations from the median to the 90 % quantile of a rate.

A cheap option may get as many rows as it does at this quantile, if a batch can do the unfinished rows later.
"""
_SQRT_HALF = math.sqrt(0.5)
_FLOAT_EPSILON = 1e-17
"""A term smaller than this share of a sum does not change the sum in floating point."""
Rows = tuple[int, ...]
"""Rows per synchronous option, in the order of the capacity."""


class OptionCapacity(Struct, frozen=True):
    """A synchronous option with its figures as floats.

    Rates are in rows a second; `low` is the low quantile of the rate. `hazard` is in outages a second.
    """

    option: SynchronousOption
    price: float
    rate: float
    low: float
    ahead: float
    start: float
    hazard: float
    is_even: bool
    """True if the option's pace is the same at all hours and no rows of other jobs go first."""

    @property
    def good_night(self) -> float:
        """High (90 %) quantile of the rate, as a multiple of the usual rate."""
        return math.exp(HOPEFUL_SIGMAS * self.option.pace.spread)

    @property
    def outage_free_seconds(self) -> float:
        """Seconds without an outage long enough to move the option's rows, with 95 % probability."""
        outages = max(self.hazard, self.option.pace.observed_hazard / HOUR) * math.exp(
            -DETECTION_SECONDS / self.option.pace.outage
        )
        return _EXPECTED_OUTAGES / outages if outages > 0.0 else math.inf

    def is_back(self, seconds: float) -> float:
        """Return P(a standstill ends within `seconds`)."""
        return 1.0 - math.exp(-seconds / self.option.pace.outage)

    def between(self, at: float, end: float, rate: float, *, warm: bool = False) -> float:
        """Return the rows done from `at` to `end` at this rate, if the job's rows arrive at `at`.

        A stopped option has to start first, and rows of other jobs go first. A `warm` option already has rows, so its
        start does not wait for `at`.
        """
        begin = (at if at >= self.start else self.start) if warm else at + self.start
        if end <= begin or rate <= 0.0:
            return 0.0
        if self.is_even:
            return rate * (end - begin)
        full = self.option.pace.equivalent_seconds
        ahead = self.ahead - rate * full(at) if self.ahead else 0.0
        rows = rate * (full(end) - full(begin)) - (ahead if ahead > 0.0 else 0.0)
        return rows if rows > 0.0 else 0.0


class Capacity(Struct, frozen=True):
    """The synchronous options, cheapest first, until the `horizon`: the seconds until rows must be answered.

    `lows` has the low quantile of each option's rate. `claims` are the possible needs of other jobs. `finishes` is
    P(the job finishes in time), given that its rows are answered by the horizon. `budget` is in dollars. A row that
    an option is too slow to do costs `later_dollars` in a later batch. That batch is in time with probability
    `later_chance`.
    """

    sync_options: tuple[OptionCapacity, ...]
    horizon: float
    target: float
    lows: tuple[float, ...]
    claims: tuple[Claim, ...] = ()
    finishes: float = 1.0
    budget: float = math.inf
    later_dollars: float = 0.0
    later_chance: float = 0.0

    def release_seconds(self, held: Sequence[int]) -> float:
        """Return the seconds until rows that are taken back from options are free."""
        return max(
            [sync.option.cancel_seconds for sync, rows in zip(self.sync_options, held, strict=True) if rows],
            default=0.0,
        )

    def fits(
        self,
        burden: float,
        held: Sequence[int],
        at: float,
        fallback: int,
        *,
        tail: float = 0.0,
        cause: Collection[str] = (),
        likely: float = 1.0,
    ) -> bool:
        """Return True if all rows are surely done by the deadline.

        The rows are the `held` rows of each option and `burden` rows that arrive at `at`. Only the first `fallback`
        options take arriving or unfinished rows. `tail` is the P(failure) of earlier steps. `cause` names late
        backends: a claim whose source is among them counts as certain. The `burden` rows arrive with probability
        `likely`. The rarer the arrival, the more often it may fail.
        """
        burden, at = burden + self._certain_claims(cause), max(at, self.release_seconds(held))
        allowed = (1.0 - self.target) / max(MIN_LIKELY, likely)
        rates = self.lows if likely >= 1.0 else self._rates(allowed)
        if self._spare_rows(rates, burden, held, at, fallback) < 0:
            return False
        risk = tail + (1.0 - self.finishes) + self.risk(burden, held, at, fallback, cause)
        if risk <= NEGLIGIBLE:
            return True
        if allowed - risk <= 1e-9:
            return False
        return self._spare_rows(self._rates(allowed - risk), burden, held, at, fallback) >= 0

    def _rates(self, failure: float) -> list[float]:
        """Return the rates that a plan may rely on if it may fail with probability `failure`."""
        z = -NORMAL.inv_cdf(min(0.5, failure * KNOWN_RISK_SHARE))
        return [sync.rate * math.exp(-z * sync.option.pace.spread) for sync in self.sync_options]

    def chance(
        self, burden: float, held: Sequence[int], at: float, fallback: int, *, cause: Collection[str] = ()
    ) -> float:
        """Return P(all rows are done by the deadline). The arguments are those of `fits`."""
        if burden <= 0 and not any(held):
            return 1.0
        burden, at = burden + self._certain_claims(cause), max(at, self.release_seconds(held))
        likely = self._chance_of_paces(burden, held, at, fallback) - self.risk(burden, held, at, fallback, cause)
        return max(0.0, likely) * self.finishes * (1.0 - self.slow_too(burden, held, at, fallback, cause))

    def slow_too(self, burden: float, held: Sequence[int], at: float, fallback: int, cause: Collection[str]) -> float:
        """Return P(an option is too slow for its rows | batches at the backends in `cause` are late).

        The result is the largest of the options' probabilities. Options whose rows other options can do are left out.
        """
        chance = 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            seen = (sync.option.slow_with.get(backend, (0.0, 1.0)) for backend in cause)
            likely, share = max(seen, default=(0.0, 1.0))
            if likely <= chance or not (rows or place < fallback):
                continue
            slow = [low * share if other == place else low for other, low in enumerate(self.lows)]
            if self._spare_rows(slow, burden, held, at, fallback) >= 0:
                continue
            if not self._others_suffice(self.lows, burden, held, at, fallback, place):
                chance = likely
        return chance

    def _chance_of_paces(self, burden: float, held: Sequence[int], at: float, fallback: int) -> float:
        """Return P(the paces suffice). Bisects for the quantile at which all rows just fit, then widens the tail."""
        bottom, top = -4.0, 4.0
        for _ in range(14):
            middle = (bottom + top) / 2
            rates = [sync.rate * math.exp(-middle * sync.option.pace.spread) for sync in self.sync_options]
            if self._spare_rows(rates, burden, held, at, fallback) >= 0:
                bottom = middle
            else:
                top = middle
        return 1.0 - _widen_tail(_normal_cdf(-bottom)) if bottom > -4.0 else 0.0

    def _certain_claims(self, cause: Collection[str]) -> float:
        """Return the number of rows that other jobs surely send.

        All rows of a claim are sure if its source is in `cause`. If its source is a synchronous option, the rows that
        the option is too slow to do are sure.
        """
        total = 0.0
        for claim in self.claims:
            if claim.source in cause:
                total += claim.rows
            elif (sync := self._option_of(claim.source)) is not None:
                does = sync.low * sync.option.pace.equivalent_seconds(max(0.0, self.horizon - sync.start))
                total += max(0.0, claim.rows - does)
        return total

    def _option_of(self, backend: str) -> OptionCapacity | None:
        return next((sync for sync in self.sync_options if sync.option.backend == backend), None)

    def risk(
        self, burden: float, held: Sequence[int], at: float, fallback: int, cause: Collection[str] = ()
    ) -> float:
        """Return P(an engine fails or another job claims capacity, and the other options cannot compensate for it).

        The probabilities of these events are added up, to at most 1.
        """
        lows, risk = self.lows, 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            stands = sync.option.pace.stands
            if sync.rate <= 0.0 or not (rows or (burden > 0 and place < fallback)):
                continue
            if stands > NEGLIGIBLE and not self._others_suffice(lows, burden, held, at, fallback, place):
                risk += stands
            if sync.hazard <= 0.0:
                continue
            begin = 0.0 if rows else at - min(at, sync.option.pace.outage)
            end = min(self.horizon, self._usual_end(burden, held, at, fallback, place))
            exposed_seconds = max(0.0, end - begin)
            if sync.hazard * exposed_seconds <= NEGLIGIBLE:
                continue
            if place and not rows and self._spare_rows(lows, burden, held, at, place) >= 0:
                continue  # cheaper options do all rows
            if place < fallback and self._others_suffice(lows, burden, held, at, fallback, place):
                exposed_seconds = min(exposed_seconds, max(0.0, end + DETECTION_SECONDS - self.horizon))
            risk += _outages_exceed(
                max(0.0, self.horizon - end), sync.hazard * exposed_seconds, sync.option.pace.outage
            )
        for claim in self.claims:
            if claim.source in cause or claim.chance <= NEGLIGIBLE or self._option_of(claim.source):
                continue
            if self._spare_rows(lows, burden + claim.rows, held, at, fallback) < 0:
                risk += claim.chance
        return min(1.0, risk)

    def _usual_end(self, burden: float, held: Sequence[int], at: float, fallback: int, place: int) -> float:
        """Return the usual seconds until an option finishes its own rows.

        One of the first `fallback` options also finishes its share of `burden`.
        """
        sync = self.sync_options[place]
        if sync.rate <= 0:
            return math.inf
        own = sync.option.pace.seconds_for(held[place]) if held[place] else 0.0
        if burden <= 0 or place >= fallback:
            return own
        total_rate = sum([each.rate for each in self.sync_options[:fallback]])
        return max(own, at + sync.start + (sync.ahead / sync.rate) + burden / total_rate)

    def _others_suffice(
        self, rates: Sequence[float], burden: float, held: Sequence[int], at: float, fallback: int, place: int
    ) -> bool:
        rates, others_held, option = list(rates), list(held), self.sync_options[place].option
        rates[place], others_held[place] = 0.0, 0
        more = held[place] + sum([claim.rows for claim in self.claims if claim.source == option.backend])
        at = max(at, DETECTION_SECONDS + option.cancel_seconds)
        return self._spare_rows(rates, burden + more, others_held, at, fallback) >= 0

    def _spare_rows(
        self, rates: Sequence[float], burden: float, held: Sequence[int], at: float, fallback: int
    ) -> float:
        """Return the number of further rows that the options could do. It is negative if demand exceeds capacity."""
        room, horizon = -burden, self.horizon
        until = min(at, horizon)  # work after the deadline does not count
        for place, (sync, rows, rate) in enumerate(zip(self.sync_options, held, rates, strict=True)):
            if place >= fallback:  # outside the fallback: the option does only its own rows, and no other takes them
                own = sync.between(0.0, horizon, rate) - rows
                if own < 0:
                    return own
                continue
            if rows and (unfinished := rows - sync.between(0.0, until, rate)) > 0.0:
                room -= unfinished
            if not sync.is_even:
                room += sync.between(at, horizon, rate, warm=rows > 0)
                continue
            # `between`, inlined: most of the planner's time is spent here.
            begin = at + sync.start if rows <= 0 else at if at >= sync.start else sync.start
            if horizon > begin and rate > 0.0:
                room += rate * (horizon - begin)
        return room

    def latest_arrival(self, burden: float, held: Sequence[int], at: float, fallback: int) -> float:
        """Return the latest time at which `burden` rows may arrive and usually still be done in time, within about 3
        %.

        Returns `at` if even an arrival at `at` is too late.
        """
        rates = [sync.rate for sync in self.sync_options]
        bottom, top = at, max(at, self.horizon)
        for _ in range(5):
            middle = (bottom + top) / 2
            if self._spare_rows(rates, burden, held, middle, fallback) >= 0:
                bottom = middle
            else:
                top = middle
        return bottom

    def pays_twice(self, rows: float, price: Decimal) -> bool:
        """Return True if the budget covers paying for the rows twice: at the dearest option, and in a batch at
        `price`.
        """
        dearest = max((sync.option.cost.p95 for sync in self.sync_options), default=Decimal(0))
        return rows * float(dearest + price) <= self.budget

    def wait_for_cancels(self, burden: float, held: Sequence[int], fallback: int) -> float:
        """Return the longest safe wait for cancelled batches, in seconds.

        After that wait, other options can still surely do the rows. The batches have `burden` rows, which are free
        `GIVE_UP_SECONDS` after orch stops waiting. A negative result means that it is too late.
        """
        bottom, top = -1.0, self.horizon
        while top - bottom > GIVE_UP_SECONDS / 4:
            middle = (bottom + top) / 2
            if self.fits(burden, held, middle + GIVE_UP_SECONDS, fallback):
                bottom = middle
            else:
                top = middle
        return bottom

    def room(
        self, held: Sequence[int], at: float, fallback: int, *, sure: bool, outage_free: bool = False,
        hopeful: bool = False,
    ) -> list[float]:  # fmt: skip
        """Return the number of rows that each option of the fallback can take from `at`, besides the rows it holds.

        `sure` uses the low quantile of each rate. `outage_free` counts only the time in which an option surely has no
        outage. `hopeful` uses the high quantile of an option's rate if a batch can do the unfinished rows later.
        """
        room = []
        for place, (sync, rows) in enumerate(zip(self.sync_options[:fallback], held, strict=False)):
            rate, until = sync.low if sure else sync.rate, self.until(place, fallback)
            rate = sync.rate * sync.good_night if hopeful and self.is_hopeful(place, fallback) else rate
            until = min(until, sync.outage_free_seconds) if outage_free else until
            own = max(0.0, rows - sync.between(0.0, min(at, until), rate)) if rows else 0.0
            room.append(max(0.0, sync.between(at, until, rate, warm=rows > 0) - own))
        return room

    def until(self, place: int, fallback: int) -> float:
        """Return the time until which an option of the fallback may work, in seconds from now.

        The fastest option may work until the horizon. Any other option stops earlier, so that the fallback can still
        do its unfinished rows. An option that fails often stops early enough for orch to detect an outage.
        """
        if (
            fallback < 2
            or place >= fallback
            or place == max(range(fallback), key=lambda one: self.sync_options[one].rate)
        ):
            return self.horizon
        sync = self.sync_options[place]
        fails = sync.hazard * DETECTION_SECONDS > (1.0 - self.target) * KNOWN_RISK_SHARE
        return max(0.0, self.horizon - (DETECTION_SECONDS if fails else REPLAN_SECONDS) - sync.option.cancel_seconds)

    def fill(self, rows: int, room: Sequence[float]) -> Rows:
        """Distribute rows to options, cheapest first.

        Rows beyond the total room are divided in proportion to rate, so that they end soonest.
        """
        left, taken = rows, [0] * len(self.sync_options)
        for place, free in enumerate(room):
            taken[place] = min(left, math.floor(free))
            left -= taken[place]
        if left:
            rates = [sync.rate for sync in self.sync_options[: len(room)]]
            total_rate = sum(rates)
            fastest = max(range(len(rates)), key=rates.__getitem__)
            shares = [int(left * rate / total_rate) if total_rate else 0 for rate in rates]
            for place, share in enumerate(shares):
                taken[place] += share
            taken[fastest] += left - sum(shares)
        return tuple(taken)

    def at_most(self, rows: Sequence[int]) -> Decimal:
        """Return the 95 % quantile of the cost of `rows`, given per option."""
        return sum(
            (sync.option.cost.p95 * count for sync, count in zip(self.sync_options, rows, strict=True) if count),
            Decimal(0),
        )

    def price(self, held: Sequence[int], arrivals: Sequence[tuple[float, float]], fallback: int) -> float:
        """Return the expected dollars for held rows and for `arrivals`, as (seconds from now, rows).

        Rows that an option is not expected to finish in time go to the next option, so more time never costs more.
        """
        usual = [sync.between(0.0, self.horizon, sync.rate) for sync in self.sync_options]
        total, load = 0.0, [float(rows) for rows in held]
        left_over = 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            unfinished = shortfall(rows, usual[place], sync.option.pace.spread) if rows and place < fallback else 0.0
            later = self._later(rows, usual[place], place, fallback)
            total += sync.price * (rows - unfinished) + self.later_dollars * later
            left_over += unfinished - later
        for when, more in ((0.0, left_over), *arrivals):
            total += self._assign(more, load, when, fallback)
        return total

    def _assign(self, rows: float, load: list[float], when: float, fallback: int) -> float:
        """Assign arriving rows to options, cheapest first, and return their dollars. Adds the rows to `load`."""
        total = 0.0
        for place in range(fallback):
            if rows <= 0:
                break
            sync = self.sync_options[place]
            own = max(0.0, load[place] - sync.between(0.0, min(when, self.horizon), sync.rate))
            spare = sync.between(when, self.horizon, sync.rate, warm=load[place] > 0) - own
            unfinished = shortfall(rows, max(0.0, spare), sync.option.pace.spread) if place < fallback - 1 else 0.0
            later = self._later(rows, spare, place, fallback) if not when else 0.0
            total += sync.price * (rows - unfinished) + self.later_dollars * later
            load[place] += rows - unfinished
            rows = unfinished - later
        return total

    def is_hopeful(self, place: int, fallback: int) -> bool:
        """Return True if a later batch could do an option's unfinished rows more cheaply than the next option.

        False for an option whose speed changes with the hour: its present rate does not predict its later rate.
        """
        if not self.later_chance or place >= fallback - 1 or self.sync_options[place].option.pace.steps:
            return False
        return self.sync_options[place].price < self.later_dollars < self.sync_options[place + 1].price

    def _later(self, rows: float, usual: float, place: int, fallback: int) -> float:
        """Return the rows expected in a later batch if an option usually does `usual` of `rows`.

        Rows beyond the option's high quantile do not count: orch need not wait for tonight's rate to move them.
        """
        if rows <= 0 or usual <= 0 or not self.is_hopeful(place, fallback):
            return 0.0
        sync = self.sync_options[place]
        return self.later_chance * shortfall(min(rows, usual * sync.good_night), usual, sync.option.pace.spread)

    def slowest(self, held: Sequence[int]) -> float:
        """Return the seconds until every option has finished its rows. Returns infinity if an option stands still."""
        return max(
            (sync.option.pace.seconds_for(rows) for sync, rows in zip(self.sync_options, held, strict=True)),
            default=0.0,
        )

    def slack(self, burden: float, held: Sequence[int], free_in: float, fallback: int, most: float) -> float:
        """Return the seconds until a row must move between options. The result is at most `most`, and exact to about
        20 %.
        """
        wait, step, release = 0.0, 60.0, self.release_seconds(held)
        while wait < most and step < self.horizon and self.fits(burden, held, max(free_in, step + release), fallback):
            wait, step = step, step * 1.2
        return wait

    def seconds(self, burden: float, held: Sequence[int], at: float, fallback: int) -> tuple[float, float]:
        """Return the median seconds until all rows are done, and the spread. The median is infinite if all options
        stand still.
        """
        rows_left, rate, spread, start, outside_end = burden, 0.0, 0.0, 0.0, 0.0
        for place, (sync, rows) in enumerate(zip(self.sync_options, held, strict=True)):
            if place >= fallback and not rows:
                continue
            spread = max(spread, sync.option.pace.spread)
            if place >= fallback:
                outside_end = max(outside_end, sync.option.pace.seconds_for(rows))
                continue
            rows_left += max(0.0, rows - sync.between(0.0, at, sync.rate)) + max(0.0, sync.ahead - sync.rate * at)
            rate, start = rate + sync.rate, max(start, sync.start)
        if burden <= 0 and not any(held[:fallback]):
            return outside_end, spread
        return max(outside_end, at + start + rows_left / rate if rate > 0 else math.inf), spread


def capacity(
    synchronous: Sequence[SynchronousOption],
    horizon: float,
    target: float,
    claims: tuple[Claim, ...] = (),
    finishes: float = 1.0,
    budget: float = math.inf,
) -> Capacity:
    """Return the capacity of options. Options are sorted by price, then by speed, then in the given order."""
    z = NORMAL.inv_cdf(min(max(1.0 - (1.0 - target) * KNOWN_RISK_SHARE, 1e-9), 1 - 1e-9))
    sync_options = []
    for option in sorted(synchronous, key=lambda one: (one.cost.p50, -one.pace.rate)):
        pace = option.pace
        low = pace.rate * math.exp(-z * pace.spread)
        sync_options.append(
            OptionCapacity(
                option,
                float(option.cost.p50),
                pace.rate,
                low,
                pace.ahead,
                pace.start,
                pace.hazard / HOUR,
                not pace.ahead and not pace.steps,
            )
        )
    lows = tuple(sync.low for sync in sync_options)
    return Capacity(tuple(sync_options), horizon, target, lows, claims, finishes, budget)


def _outages_exceed(spare: float, outages: float, length: float) -> float:
    """Return P(outages take more than `spare` seconds in total): the tail of a compound Poisson sum.

    `outages` is the expected number of outages. Their lengths are exponential with mean `length`, in seconds.
    """
    stretch, exceedance = spare / length, 0.0
    poisson = cumulative = math.exp(-outages)
    ends, term = 0.0, math.exp(-stretch)
    for count in range(1, MAX_OUTAGES):
        # P(the sum of `count` exponential lengths > spare) = P(Poisson(spare / length) < count).
        ends, term = ends + term, term * stretch / count
        poisson *= outages / count
        cumulative += poisson
        exceedance += poisson * ends
        if poisson < _FLOAT_EPSILON * exceedance:
            break
    return min(1.0, exceedance + max(0.0, 1.0 - cumulative))


def _widen_tail(tail: float) -> float:
    """Return P(failure) for a forecast of `tail`. Rare failures are about three times as frequent as forecast."""
    return tail * (1.0 + (1.0 / KNOWN_RISK_SHARE - 1.0) * (1.0 - tail) ** 4)


def excess(median: float, spread: float, mark: float) -> float:
    """Return E[max(X - mark, 0)] of a log-normal X, by the Black-Scholes call formula."""
    if mark <= 0 or median <= 0 or spread <= 0 or math.isinf(median):
        return max(0.0, median - mark)
    d = math.log(median / mark) / spread
    return max(0.0, median * math.exp(spread * spread / 2) * _normal_cdf(d + spread) - mark * _normal_cdf(d))


def _normal_cdf(quantile: float) -> float:
    """Return the standard normal distribution function at `quantile`. Three times as fast as `NORMAL.cdf`."""
    return 0.5 * math.erfc(-quantile * _SQRT_HALF)


def shortfall(rows: float, median: float, spread: float) -> float:
    """Return the expected number of unfinished rows: E[max(rows - X, 0)] of a log-normal X."""
    if median <= 0:
        return rows
    return max(0.0, rows - median * math.exp(spread * spread / 2) + excess(median, spread, rows))
