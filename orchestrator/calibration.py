"""Whether forecasts can be trusted: what was foreseen, held against what came. Pure.

Of what came, half should be below its p50 and 95 % below its p95. How far a share may be off by chance is told by the
binomial distribution: what would come about less than one time in twenty is called wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, exp, fsum, lgamma, log
from statistics import median
from typing import Any

from orchestrator.model import Forecast

ENOUGH = 10
"""With fewer that are known, nothing is said of them."""
CHANCE = 0.05


@dataclass(frozen=True, slots=True)
class Calibration:
    """The forecasts of one kind, backend, model and task.

    `known` counts those of which it is known what came, `open` the others. `below_p50` and `below_p95` are shares of
    the known ones (one that was hit exactly counts half at the p50, and whole at the p95), `ratio` is the median of
    what came by its p50; None where nothing is known. `trusted` is None while it is too early to tell. The oldest
    of them was made at `first_at`, the newest at `last_at`.
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
        """The stable form; documented in docs/json.md."""
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
    """Hold forecasts against what came, by kind, backend, model and task, sorted by these."""
    groups: dict[tuple[str, str, str, str], list[Forecast]] = {}
    for one in forecasts:
        groups.setdefault((one.kind, one.backend, one.model, one.task), []).append(one)
    return [_calibration(key, made) for key, made in sorted(groups.items())]


def _calibration(key: tuple[str, str, str, str], made: Sequence[Forecast]) -> Calibration:
    known = [(one.actual, one.p50, one.p95) for one in made if one.actual is not None]
    number, still = len(known), len(made) - len(known)
    made_at = min(one.made_at for one in made), max(one.made_at for one in made)
    if not known:
        return Calibration(*key, 0, still, None, None, None, None, _too_few(0), *made_at)
    below = sum(actual < p50 for actual, p50, _ in known)
    hit = sum(actual == p50 for actual, p50, _ in known)
    held = sum(actual <= p95 for actual, _, p95 in known)
    ratios = [actual / p50 for actual, p50, _ in known if p50]
    ratio = median(ratios) if ratios else None
    trusted, verdict = _verdict(number, below, number - hit, held, ratio)
    shares = (below + hit / 2) / number, held / number
    return Calibration(*key, number, still, *shares, ratio, trusted, verdict, *made_at)


def _verdict(number: int, below: int, unlike: int, held: int, ratio: float | None) -> tuple[bool | None, str]:
    """`unlike` counts those that were not hit exactly: only these say whether the p50 is too high or too low."""
    if number < ENOUGH:
        return None, _too_few(number)
    if at_most(held, number, 0.95) < CHANCE:
        due = ceil(0.95 * number)
        return False, f"too hopeful: {held} of {number} kept within the p95, where {due} should"
    usual = "" if ratio is None else f": it usually comes to {ratio:.2f} × the p50"
    if at_most(below, unlike, 0.5) < CHANCE / 2:
        return False, f"too low in the middle{usual}, though the p95 holds"
    if at_most(unlike - below, unlike, 0.5) < CHANCE / 2:
        return True, f"on the safe side{usual}"
    return True, "as good as it says"


def _too_few(number: int) -> str:
    return f"too few to tell: {number} of the {ENOUGH} it takes"


def at_most(hits: int, tries: int, share: float) -> float:
    """How likely it is that so many tries, each a hit with this chance, give no more hits than these."""
    return min(1.0, fsum(exp(_log_chance(each, tries, share)) for each in range(hits + 1)))


def _log_chance(hits: int, tries: int, share: float) -> float:
    ways = lgamma(tries + 1) - lgamma(hits + 1) - lgamma(tries - hits + 1)
    return ways + hits * log(share) + (tries - hits) * log(1 - share)
