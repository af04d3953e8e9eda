"""Probes of routes with a guessed price: a few of the job's own rows measure a route first. Pure.

The slower an hourly-paid engine is, the more it costs per row. A cautious guess of its speed may make it look dearer
than every other route, so that it never gets a row. While the engine answers its first rows, rows that would cost
more elsewhere wait, as long as the target is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec.structs import replace

from orchestrator.core.counts import number_that
from orchestrator.core.durations import MINUTE
from orchestrator.core.money import up_to
from orchestrator.core.probability_words import chance_words
from orchestrator.policy.forecast import NORMAL
from orchestrator.policy.planner.candidate_plans import MAX_PROBE_SHARE
from orchestrator.policy.planner.planning_problem import objection
from orchestrator.policy.planner.replan import replan
from orchestrator.policy.planner.types import (
    Cost,
    Decision,
    Open,
    Option,
    Probe,
    Running,
    Send,
    SynchronousOption,
    Terms,
)

GUESS_SPREAD = 0.5
"""A rate counts as a guess if the spread of its logarithm is at least this."""
SIZE_CHANCE, SAVING_CHANCE = 0.2, 0.05
"""P(the engine reaches the assumed rate). The first sizes the probe, the second estimates its saving."""
NIGHTS = 10
"""Number of similar nights that profit from a measured speed.

A probe pays if `NIGHTS` x `SAVING_CHANCE` x (saving in a night) exceeds its extra cost.
"""
MIN_ROWS = 20
"""Minimum number of rows that measure a speed."""
PROBE_SECONDS = 0.5 * MINUTE
"""Seconds that the probe keeps a fast engine busy."""
REPLAN_SECONDS, WAIT_SECONDS = 0.5 * MINUTE, 3.0 * MINUTE
"""Seconds until the next replanning, and the longer wait that must not endanger the target."""
MAX_CHANCE_LOSS = 0.002
"""Largest loss of P(in time) that waiting may cause if it leaves P(in time) below the target."""


def measure(
    job: Open, options: Sequence[Option], terms: Terms, now: datetime
) -> tuple[Probe | None, Decision] | None:
    """Return a probe for a new job, and the decision that sends the probe and the rows that need not wait.

    The probe is None if the decision's other rows already measure a route. Returns None if no rate is a guess, if
    waiting does not pay, or if waiting would miss the target.
    """
    if not job.waiting or not any(_is_guess(one) for one in options):
        return None
    plain = replan(job, options, terms, now)
    if not plain.sends:
        return None
    taken = {send.backend for send in plain.sends}
    for option in _unknown_prices(options, terms):
        rows, fast = _probe_rows(option, job.waiting), _fast_variant(option, SAVING_CHANCE)
        if option.backend in taken or not rows:
            continue
        better = replan(job, [fast if one is option else one for one in options], terms, now)
        fee = rows * max(Decimal(0), option.cost.p50 - plain.expected / job.waiting)
        if (plain.expected - better.expected) * Decimal(repr(NIGHTS * SAVING_CHANCE)) <= fee:
            continue
        at_most = option.cost.p95 * rows
        left = terms if terms.budget is None else replace(terms, budget=max(Decimal(0), terms.budget - at_most))
        decision = _hold_back(job, Send(rows, option.backend), options, left, now, plain)
        if decision is not None:
            why = f"a probe: its speed was never measured, and it is cheap if fast; costs at most {up_to(at_most)}"
            return Probe(option.backend, rows, at_most, why), decision
    decision = _hold_back(job, None, options, terms, now, plain)
    return None if decision is None else (None, decision)


def keep_waiting(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision | None:
    """Return a decision that lets dearer rows wait while a route is measured.

    Returns None if no row waits, or if waiting would endanger the deadline.
    """
    at_work = {backend for backend, rows in job.synchronous if rows}
    guesses = {one.backend for one in options if _is_guess(one, starts=True)} & at_work
    if not guesses or not job.waiting or job.rerouted or job.coming:
        return None
    plain = replan(job, options, terms, now)
    if any(send.source in guesses for send in plain.sends):
        # The rows of a probe stay until they have measured its route.
        others = tuple((backend, rows) for backend, rows in job.synchronous if backend not in guesses)
        plain = replan(replace(job, synchronous=others), options, terms, now)
    return _hold_back(job, None, options, terms, now, plain)


def _is_guess(option: Option, *, starts: bool = False) -> bool:
    """Return True if the rate of an option is a guess.

    `starts` also includes hourly-paid options without a rate, because they may still be starting.
    """
    if not isinstance(option, SynchronousOption) or option.pace.spread < GUESS_SPREAD:
        return False
    return option.pace.rate > 0 or (starts and option.timed)


def _unknown_prices(options: Sequence[Option], terms: Terms, *, starts: bool = False) -> list[SynchronousOption]:
    """Return hourly-paid routes with a guessed rate, sorted by the price they would have if fast."""
    routes = [
        one
        for one in options
        if isinstance(one, SynchronousOption)
        and one.timed
        and _is_guess(one, starts=starts)
        and objection(one, terms) is None
    ]
    return sorted(routes, key=lambda one: _fast_variant(one, SAVING_CHANCE).cost.p50)


def _fast_variant(option: SynchronousOption, chance: float) -> SynchronousOption:
    """Return an option with the rate that it reaches with probability `chance`, and with the price at that rate."""
    times = math.exp(NORMAL.inv_cdf(1.0 - chance) * option.pace.spread)
    each = option.cost.p50 / Decimal(repr(times))
    pace = replace(option.pace, rate=option.pace.rate * times, spread=GUESS_SPREAD / 2)
    return replace(option, cost=Cost(each, each), pace=pace)


def _probe_rows(option: SynchronousOption, waiting: int) -> int:
    """Return the number of rows that measure a speed, or 0 if the probe would take too large a share of the job."""
    rows = max(MIN_ROWS, int(_fast_variant(option, SIZE_CHANCE).pace.rate * PROBE_SECONDS))
    most = int(waiting * MAX_PROBE_SHARE)
    return min(rows, most) if most >= MIN_ROWS else 0


def _hold_back(
    job: Open, probe: Send | None, options: Sequence[Option], terms: Terms, now: datetime, plain: Decision
) -> Decision | None:
    """Return the `plain` decision with the `probe` added, except that rows wait if a guessed route may be cheaper.

    A few rows still go to each guessed route. Returns None if no row waits, or if waiting would endanger the
    deadline.
    """
    if terms.late_cost is not None or plain.cancel or any(send.source is not None for send in plain.sends):
        return None
    by_name = {one.backend: one for one in options}
    now_sent = _sends_now(job, probe, plain, by_name, terms)
    left = job.waiting - sum(send.rows for send in now_sent)
    if left <= 0:
        return None
    probed = frozenset() if probe is None else frozenset({probe.backend})
    at_work = {name for name, rows in job.synchronous if rows}
    guesses = {one.backend for one in _unknown_prices(options, terms, starts=True)} & at_work
    chance, reroute = 0.0, None
    for all_lost, failed in ((False, probed), (True, probed | guesses)):
        late, then = _state_after_wait(job, now_sent, all_lost, failed, left, by_name, now)
        decision = replan(late, [one for one in options if one.backend not in failed], terms, then)
        if decision.chance > chance:
            chance, reroute = decision.chance, decision.reroute
    if chance < min(terms.target, plain.chance - MAX_CHANCE_LOSS):
        return None
    waiting = f"{number_that(left, 'row', 'wait')} until a guessed speed is measured"
    why = f"{waiting}; {chance_words(chance)} likely to be in time"
    at = now + timedelta(seconds=REPLAN_SECONDS)
    return Decision((), tuple(now_sent), why, at, min(plain.chance, chance), plain.expected, reroute, waits=True)


def _sends_now(
    job: Open, probe: Send | None, plain: Decision, by_name: dict[str, Option], terms: Terms
) -> list[Send]:
    """Return the probe and the sends of `plain` that do not wait.

    Rows for the cheapest routes do not wait. A dearer route with a guessed price gets a few rows that measure it.
    """
    at_work_before = {name for name, rows in job.synchronous if rows}
    at_work = at_work_before | ({probe.backend} if probe else set())
    guesses = [
        _fast_variant(one, SAVING_CHANCE)
        for one in _unknown_prices(list(by_name.values()), terms, starts=True)
        if one.backend in at_work
    ]
    cheap = min([by_name[send.backend].cost.p50 for send in plain.sends] + [one.cost.p50 for one in guesses])
    sends = [] if probe is None else [probe]
    for send in plain.sends:
        option = by_name[send.backend]
        if option.cost.p50 <= cheap:
            sends.append(send)
        elif _is_guess(option) and send.backend not in at_work_before:
            sends.append(replace(send, rows=min(send.rows, MIN_ROWS)))
    return sends


def _state_after_wait(
    job: Open,
    sent: Sequence[Send],
    all_lost: bool,
    failed: frozenset[str],
    left: int,
    by_name: dict[str, Option],
    now: datetime,
) -> tuple[Open, datetime]:
    """Return the job and the time after a wait, if the rows at `failed` routes come back undone.

    If `all_lost`, all rows sent now come back undone, too.
    """
    synchronous, sent_now = dict(job.synchronous), []
    leaves = 0.0
    for name in failed & synchronous.keys():
        left += synchronous.pop(name)
        leaves = max(leaves, by_name[name].cancel_seconds)
    for send in sent:
        option = by_name[send.backend]
        if all_lost or send.backend in failed:
            left += send.rows
            leaves = max(leaves, option.cancel_seconds)
        elif isinstance(option, SynchronousOption):
            synchronous[send.backend] = synchronous.get(send.backend, 0) + send.rows
        else:
            sent_now.append(Running("unsent", send.backend, send.rows, now))
    then = now + timedelta(seconds=WAIT_SECONDS + leaves)
    # Keep the age of running batches: they then have less time, which is safe.
    running = [replace(one, submitted_at=one.submitted_at + (then - now)) for one in (*job.running, *sent_now)]
    return replace(job, waiting=left, running=tuple(running), synchronous=tuple(synchronous.items())), then
