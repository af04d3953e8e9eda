"""Comparison of forecasts with actual values, to show whether forecasts can be trusted. Pure.

Half of the actual values should be below their p50, and 95 % below their p95. Chance causes deviations, by the
binomial distribution. Forecasts count as wrong if a deviation this large has a probability below one in twenty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import ceil, exp, fsum, lgamma, log
from statistics import median
from typing import Any

from msgspec import Struct

from orchestrator.core.model import Forecast

IN_TIME = "in_time"
"""Kind of forecast with a chance, P(in time), as its p50. The actual value is 1 or 0."""
ENOUGH = 10
"""Minimum number of known values for a verdict."""
CHANCE = 0.05


class Calibration(Struct, frozen=True):
    """The forecasts of one kind, backend, model and task, compared with the actual values.

    `known` counts forecasts whose actual value is known to be above or below the p50. `open` counts forecasts without
    an actual value. `below_p50` and `below_p95` are shares of the forecasts for which the comparison is known. A
    censored value is a lower bound. So its comparison is known only if the value exceeds the p50 or p95. An actual
    value equal to the p50 counts half as below, and a value equal to the p95 counts fully.

    `ratio` is the median of actual value / p50, or None if it is unknown. Forecasts of a chance (`in_time`) have no
    shares. Their ratio is the number of jobs in time divided by the expected number. `trusted` is None while it is
    too early to tell. `verdict` is the reason in words. The forecasts were made from `first_at` to `last_at`.
    """

    kind: str
    backend: str
    model: str
    task: str
    known: int
    open: int
    below_p50: float | None
    below_p95: float | None
    ratio: float | None
    trusted: bool | None
    verdict: str
    first_at: datetime
    last_at: datetime

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form, documented in docs/reference/json.md."""
        shares = {"below_p50": self.below_p50, "below_p95": self.below_p95, "ratio": self.ratio}
        return {
            "kind": self.kind,
            "backend": self.backend,
            "model": self.model,
            "task": self.task,
            "known": self.known,
            "open": self.open,
            **{name: None if share is None else round(share, 4) for name, share in shares.items()},
            "first_at": self.first_at.isoformat(timespec="seconds"),
            "last_at": self.last_at.isoformat(timespec="seconds"),
            "trusted": self.trusted,
            "verdict": self.verdict,
        }


def calibrate(forecasts: Iterable[Forecast]) -> list[Calibration]:
    """Compare forecasts with actual values. The result is grouped and sorted by kind, backend, model and task."""
    groups: dict[tuple[str, str, str, str], list[Forecast]] = {}
    for one in forecasts:
        groups.setdefault((one.kind, one.backend, one.model, one.task), []).append(one)
    return [_calibration(key, made) for key, made in sorted(groups.items())]


def _calibration(key: tuple[str, str, str, str], made: Sequence[Forecast]) -> Calibration:
    came = [one for one in made if one.actual is not None and _is_known(one, one.p50)]
    known = [(one.actual or 0.0, one.p50, one.p95) for one in came]
    number, still = len(known), sum(one.actual is None for one in made)
    made_at = min(one.made_at for one in made), max(one.made_at for one in made)
    if not known:
        return Calibration(*key, 0, still, None, None, None, None, _too_few(0), *made_at)
    ratios = [actual / p50 for actual, p50, _ in known if p50]
    if key[0] == IN_TIME:
        return Calibration(*key, number, still, None, None, *_of_chances(known), *made_at)
    below = sum(actual < p50 for actual, p50, _ in known)
    hit = sum(actual == p50 for actual, p50, _ in known)
    told = [one.actual <= one.p95 for one in made if one.actual is not None and _is_known(one, one.p95)]
    held = sum(told)
    ratio = median(ratios) if ratios else None
    trusted, verdict = _verdict(number, below, number - hit, (held, len(told)), ratio)
    shares = (below + hit / 2) / number, held / len(told) if told else None
    return Calibration(*key, number, still, *shares, ratio, trusted, verdict, *made_at)


def _is_known(one: Forecast, mark: float) -> bool:
    """True if it is known whether the actual value exceeds `mark`.

    A censored value is a lower bound. So it is known only if the value exceeds `mark`.
    """
    return not one.censored or (one.actual or 0.0) > mark


def _of_chances(known: Sequence[tuple[float, float, float]]) -> tuple[float | None, bool | None, str]:
    """Return the ratio, trust and verdict of forecasts of chances, given as (actual value, p50, p95)."""
    number, came = len(known), round(sum(actual for actual, _, _ in known))
    share = sum(told for _, told, _ in known) / number
    ratio = came / number / share if share else None
    if number < ENOUGH:
        return ratio, None, _too_few(number)
    says = f"{came} of {number} in time; the mean forecast was {share:.1%}"
    trusted = at_most(came, number, min(share, 1.0 - 1e-9)) >= CHANCE
    return ratio, trusted, says if trusted else f"too optimistic: {says}"


def _verdict(
    number: int, below: int, unlike: int, kept: tuple[int, int], ratio: float | None
) -> tuple[bool | None, str]:
    """Return trust and verdict of the forecasts of one kind.

    `number` counts known values, and `below` counts values below their p50. `unlike` counts values that differ from
    their p50: only these values show whether the p50 is too high or too low. `kept` has two counts: the values within
    the p95, and the values for which that is known.
    """
    if number < ENOUGH:
        return None, _too_few(number)
    held, told = kept
    if at_most(held, told, 0.95) < CHANCE:
        due = ceil(0.95 * told)
        return False, f"too optimistic: {held} of {told} within the p95; expected {due}"
    usual = "" if ratio is None else f": it usually comes to {ratio:.2f} × the p50"
    if at_most(below, unlike, 0.5) < CHANCE / 2:
        return False, f"too low in the middle{usual}, though the p95 holds"
    if at_most(unlike - below, unlike, 0.5) < CHANCE / 2:
        return True, f"on the safe side{usual}"
    return True, "well calibrated"


def _too_few(number: int) -> str:
    return f"too few to judge: {number} of the {ENOUGH} needed"


def at_most(hits: int, tries: int, share: float) -> float:
    """Return P(at most `hits` hits in `tries` tries), if each try is a hit with probability `share`."""
    return min(1.0, fsum(exp(_log_chance(each, tries, share)) for each in range(hits + 1)))


def _log_chance(hits: int, tries: int, share: float) -> float:
    ways = lgamma(tries + 1) - lgamma(hits + 1) - lgamma(tries - hits + 1)
    return ways + hits * log(share) + (tries - hits) * log(1 - share)
