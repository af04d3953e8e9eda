"""Probes: a few rows for a route long unused, so that its speed is known before a deadline depends on it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import DAY, MINUTE, duration
from orchestrator.core.money import up_to
from orchestrator.policy.planner.measuring import LEAST_ROWS, MOST_ROWS, measured, waiting
from orchestrator.policy.planner.planning_problem import objection
from orchestrator.policy.planner.replan import replan
from orchestrator.policy.planner.types import (
    BatchOption,
    Decision,
    Open,
    Option,
    Probe,
    Running,
    Send,
    SynchronousOption,
    Terms,
)

WORK = 5.0 * MINUTE
"""A probe keeps a synchronous option busy for about so many seconds."""
SLACK = 0.5
"""A probe whose rows come back undone after this part of the time must not matter."""
_LESS_SURE = 0.002
"""That much of the chance may go to the figures of one more route; the target itself may not."""
_NAME = "a probe"


class ProbeRule(Struct, frozen=True):
    """When a probe is due: no row was sent to a route for `after` seconds. What it may cost: at most (95 %) the
    `share` of what the job is expected to cost."""

    after: float = 7.0 * DAY
    share: float = 0.05


def probed(
    job: Open,
    options: Sequence[Option],
    terms: Terms,
    now: datetime,
    rule: ProbeRule | None,
    last_used: Mapping[str, datetime],
) -> tuple[Probe | None, Decision] | None:
    """A probe, and what to do with the job's rows beside it; None where none is due, or none is free of risk.

    One to a route that was never measured and may be cheap, or by the `rule` to one long unused. Only as a job
    begins, while all of its rows wait; later, rows may wait for what the first kind shows. The target chance is kept
    even if the probe's rows come back undone, and the budget covers the plan with the probe in it.
    """
    if job.synchronous:
        on = waiting(job, options, terms, now)
        return None if on is None else (None, on)
    if not job.waiting or job.rerouted or job.coming or job.running:
        return None
    if (first := measured(job, options, terms, now)) is not None:
        return first
    if rule is None:
        return None
    plain = replan(job, options, terms, now)
    if plain.chance < terms.target or not plain.sends:
        return None
    for option in _due(options, plain, terms, now, rule, last_used):
        rows = _rows(option, job.waiting, plain.expected, rule)
        if not rows or not _is_harmless(option, rows, job, options, terms, now, plain):
            continue
        beside = _beside(option, rows, job, options, terms, now)
        if beside is not None and beside.chance >= max(terms.target, plain.chance - _LESS_SURE):
            most = option.cost.p95 * rows
            return Probe(option.backend, rows, most, _why(option, last_used, now, most)), beside
    return None


def _due(
    options: Sequence[Option], plain: Decision, terms: Terms, now: datetime, rule: ProbeRule,
    last_used: Mapping[str, datetime],
) -> Iterator[Option]:  # fmt: skip
    """The routes that a probe is due for: those that a reroute would need first, then the longest unused."""
    taken = {send.backend for send in plain.sends}
    needed = plain.reroute.to if plain.reroute else ()
    due = [
        option
        for option in options
        if option.backend not in taken
        and objection(option, terms) is None
        and not _is_down(option)
        and _unused(option, last_used, now) >= rule.after
    ]
    due.sort(key=lambda one: (one.backend not in needed, -_unused(one, last_used, now), one.cost.p50))
    yield from due


def _is_down(option: Option) -> bool:
    return option.pace.rate <= 0 if isinstance(option, SynchronousOption) else option.silent > 0


def _unused(option: Option, last_used: Mapping[str, datetime], now: datetime) -> float:
    """For how many seconds no row was sent there; infinite where none ever was."""
    last = last_used.get(option.backend)
    return math.inf if last is None else (now - last).total_seconds()


def _rows(option: Option, waiting: int, expected: Decimal, rule: ProbeRule) -> int:
    """How many rows show how fast a route is, within what they may cost; 0 where that is too few to show it."""
    most = int(waiting * MOST_ROWS)
    if option.cost.p95 > 0:
        most = min(most, int(Decimal(repr(rule.share)) * expected / option.cost.p95))
    if isinstance(option, SynchronousOption):
        most = min(most, max(LEAST_ROWS, int(option.pace.rate * WORK)))
    elif option.room is not None:
        most = min(most, max(0, option.room - option.behind))
    return most if most >= LEAST_ROWS else 0


def _is_harmless(
    option: Option, rows: int, job: Open, options: Sequence[Option], terms: Terms, now: datetime, plain: Decision
) -> bool:
    """Whether the job is in time all the same where the probe does nothing and its rows come back late.

    A route that the plan counts on for a reroute is counted on here too: the probe asks no more of it.
    """
    counted_on = plain.reroute is not None and option.backend in plain.reroute.to
    left = options if counted_on else [one for one in options if one.backend != option.backend]
    back = now + timedelta(seconds=max(0.0, SLACK * (terms.deadline - now).total_seconds()))
    without = replace(job, waiting=job.waiting - rows, coming=rows, coming_at=back)
    return replan(without, left, terms, now).chance >= terms.target


def _beside(
    option: Option, rows: int, job: Open, options: Sequence[Option], terms: Terms, now: datetime
) -> Decision | None:
    """What to do with the other rows once the probe is sent; None where the probe would change where they go."""
    rest = replace(job, waiting=job.waiting - rows)
    if isinstance(option, BatchOption):
        rest = replace(rest, running=(Running(_NAME, option.backend, rows, now),))
    else:
        rest = replace(rest, synchronous=((option.backend, rows),))
    found = replan(rest, options, terms, now)
    if found.cancel or any(send.source is not None or send.backend == option.backend for send in found.sends):
        return None
    return replace(found, sends=(Send(rows, option.backend), *found.sends))


def _why(option: Option, last_used: Mapping[str, datetime], now: datetime, most: Decimal) -> str:
    unused = _unused(option, last_used, now)
    since = "never used" if math.isinf(unused) else f"not used for {duration(unused)}"
    what = "turnaround" if isinstance(option, BatchOption) else "speed"
    return f"a probe: {since}, so its {what} is measured; costs at most {up_to(most)}"
