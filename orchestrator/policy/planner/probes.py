"""Probes of routes that were long unused, to know their speed before a deadline depends on it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.durations import DAY, MINUTE, duration
from orchestrator.core.money import up_to
from orchestrator.policy.planner.candidate_plans import MAX_PROBE_SHARE
from orchestrator.policy.planner.measuring import MIN_ROWS, keep_waiting, measure
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

PROBE_SECONDS = 5.0 * MINUTE
"""Seconds that a probe keeps a synchronous option busy."""
LATEST_RETURN = 0.5
"""Share of the remaining time after which a probe's rows may still come back undone without harm."""
_MAX_CHANCE_LOSS = 0.002
"""Largest loss of P(in time) that a probe may cause. P(in time) must also stay at or above the target."""
_BATCH_NAME = "a probe"


class ProbeRule(Struct, frozen=True):
    """Conditions for a probe of a long unused route.

    A probe is due if a route got no row for `after` seconds. The 95 % quantile of the probe's cost is at most the
    share `share` of the job's expected cost.
    """

    after: float = 7.0 * DAY
    share: float = 0.05


def choose_probe(
    job: Open,
    options: Sequence[Option],
    terms: Terms,
    now: datetime,
    rule: ProbeRule | None,
    last_used: Mapping[str, datetime],
) -> tuple[Probe | None, Decision] | None:
    """Return a probe, and the decision that sends the probe and other rows. Returns None if no probe is due or safe.

    A probe goes to a route that was never measured and may be cheap. By `rule`, it may also go to a long unused
    route. Only a job whose rows are all waiting gets a new probe. Rows may wait until a possibly cheap route is
    measured; the probe may then be None. The target is kept even if all probe rows come back undone. The budget
    covers the plan and the probe.
    """
    if job.synchronous:
        decision = keep_waiting(job, options, terms, now)
        return None if decision is None else (None, decision)
    if not job.waiting or job.rerouted or job.coming or job.running:
        return None
    if (first := measure(job, options, terms, now)) is not None:
        return first
    if rule is None:
        return None
    plain = replan(job, options, terms, now)
    if plain.chance < terms.target or not plain.sends:
        return None
    for option in _due_routes(options, plain, terms, now, rule, last_used):
        rows = _probe_rows(option, job.waiting, plain.expected, rule)
        if not rows or not _is_harmless(option, rows, job, options, terms, now, plain):
            continue
        beside = _rest_decision(option, rows, job, options, terms, now)
        if beside is not None and beside.chance >= max(terms.target, plain.chance - _MAX_CHANCE_LOSS):
            most = option.cost.p95 * rows
            return Probe(option.backend, rows, most, _reason(option, last_used, now, most)), beside
    return None


def _due_routes(
    options: Sequence[Option], plain: Decision, terms: Terms, now: datetime, rule: ProbeRule,
    last_used: Mapping[str, datetime],
) -> Iterator[Option]:  # fmt: skip
    """Yield the routes due for a probe: first routes that a reroute needs, then the longest unused routes."""
    taken = {send.backend for send in plain.sends}
    needed = plain.reroute.to if plain.reroute else ()
    due = [
        option
        for option in options
        if option.backend not in taken
        and objection(option, terms) is None
        and not _is_down(option)
        and _idle_seconds(option, last_used, now) >= rule.after
    ]
    due.sort(key=lambda one: (one.backend not in needed, -_idle_seconds(one, last_used, now), one.cost.p50))
    yield from due


def _is_down(option: Option) -> bool:
    return option.pace.rate <= 0 if isinstance(option, SynchronousOption) else option.silent > 0


def _idle_seconds(option: Option, last_used: Mapping[str, datetime], now: datetime) -> float:
    last = last_used.get(option.backend)
    return math.inf if last is None else (now - last).total_seconds()


def _probe_rows(option: Option, waiting: int, expected: Decimal, rule: ProbeRule) -> int:
    """Return the number of rows that a probe may have, or 0 if they are too few to measure the route."""
    most = int(waiting * MAX_PROBE_SHARE)
    if option.cost.p95 > 0:
        most = min(most, int(Decimal(repr(rule.share)) * expected / option.cost.p95))
    if isinstance(option, SynchronousOption):
        most = min(most, max(MIN_ROWS, int(option.pace.rate * PROBE_SECONDS)))
    elif option.room is not None:
        most = min(most, max(0, option.room - option.behind))
    least = option.least if isinstance(option, BatchOption) else 1
    return most if most >= max(MIN_ROWS, least) else 0


def _is_harmless(
    option: Option, rows: int, job: Open, options: Sequence[Option], terms: Terms, now: datetime, plain: Decision
) -> bool:
    """Return True if the job meets the target even if the probe's rows come back late and undone.

    A route that the plan needs for a reroute stays usable in this check, because the plan takes that risk anyway.
    """
    counted_on = plain.reroute is not None and option.backend in plain.reroute.to
    left = options if counted_on else [one for one in options if one.backend != option.backend]
    back = now + timedelta(seconds=max(0.0, LATEST_RETURN * (terms.deadline - now).total_seconds()))
    without = replace(job, waiting=job.waiting - rows, coming=rows, coming_at=back)
    return replan(without, left, terms, now).chance >= terms.target


def _rest_decision(
    option: Option, rows: int, job: Open, options: Sequence[Option], terms: Terms, now: datetime
) -> Decision | None:
    """Return the decision that sends the probe and the other rows, or None if the probe would change their routes.

    The probe changes the routes if the planner would then cancel batches, move rows, or send more rows to the probe's
    backend.
    """
    others = replace(job, waiting=job.waiting - rows)
    if isinstance(option, BatchOption):
        others = replace(others, running=(Running(_BATCH_NAME, option.backend, rows, now),))
    else:
        others = replace(others, synchronous=((option.backend, rows),))
    decision = replan(others, options, terms, now)
    if decision.cancel or any(send.source is not None or send.backend == option.backend for send in decision.sends):
        return None
    return replace(decision, sends=(Send(rows, option.backend), *decision.sends))


def _reason(option: Option, last_used: Mapping[str, datetime], now: datetime, most: Decimal) -> str:
    idle = _idle_seconds(option, last_used, now)
    since = "never used" if math.isinf(idle) else f"not used for {duration(idle)}"
    what = "turnaround" if isinstance(option, BatchOption) else "speed"
    return f"a probe: {since}, so its {what} is measured; costs at most {up_to(most)}"
