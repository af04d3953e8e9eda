"""A route whose price is a guess is measured: a few rows that must be asked anyway go there first. Pure.

An engine that is paid by the hour is as dear as it is slow. By a careful guess of its speed it may look dearer than
all else, and would never get a row that shows that it is not. While it works on the first ones, rows wait that would
cost more elsewhere, as long as that risks nothing.
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
from orchestrator.policy.forecast import NORMAL
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

GUESSED = 0.5
"""A rate is a guess where it may be as far off as this (a spread of the logarithm)."""
FAST, FASTER = 0.2, 0.05
"""P(it is as fast as it is thought of here): to count the rows that show it, and to say what it may save."""
NIGHTS = 10
"""A speed that was measured is of use on so many nights like this one. What it may save on all of them, times
`FASTER`, has to be more than the rows cost."""
LEAST_ROWS = 20
"""Fewer rows say nothing of a speed."""
MOST_ROWS = 0.05
"""The part of a job's rows that may be a probe, whatever it costs."""
WORK = 0.5 * MINUTE
"""The rows keep it busy for about so many seconds if it is that fast."""
PAUSE, AHEAD = 0.5 * MINUTE, 3.0 * MINUTE
"""Seconds until the next look, and for how many more to wait must risk nothing."""
LESS_SURE = 0.002
"""What rows that wait may take of the chance where it is below the target; above it, what is above."""


def measured(
    job: Open, options: Sequence[Option], terms: Terms, now: datetime
) -> tuple[Probe | None, Decision] | None:
    """Rows that measure a route, as a job begins, and what the others do meanwhile; None where that does not pay, or
    the target would not be kept."""
    if not job.waiting or not any(_is_guess(one) for one in options):
        return None
    plain = replan(job, options, terms, now)
    if not plain.sends:
        return None
    taken = {send.backend for send in plain.sends}
    for option in _unknown_prices(options, terms):
        rows, fast = _rows(option, job.waiting), _fast(option, FASTER)
        if option.backend in taken or not rows:
            continue
        better = replan(job, [fast if one is option else one for one in options], terms, now)
        fee = rows * max(Decimal(0), option.cost.p50 - plain.expected / job.waiting)
        if (plain.expected - better.expected) * Decimal(repr(NIGHTS * FASTER)) <= fee:
            continue
        most = option.cost.p95 * rows
        left = terms if terms.budget is None else replace(terms, budget=max(Decimal(0), terms.budget - most))
        found = _held(job, Send(rows, option.backend), options, left, now, plain)
        if found is not None:
            why = f"a probe: its speed was never measured, and it is cheap if fast; costs at most {up_to(most)}"
            return Probe(option.backend, rows, most, why), found
    held = _held(job, None, options, terms, now, plain)
    return None if held is None else (None, held)


def waiting(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision | None:
    """What to do while a route is measured: dearer rows wait on; None where none is, or that would risk something."""
    there = {backend for backend, rows in job.synchronous if rows}
    guesses = {one.backend for one in options if _is_guess(one, starts=True)} & there
    if not guesses or not job.waiting or job.rerouted or job.coming:
        return None
    plain = replan(job, options, terms, now)
    if any(send.source in guesses for send in plain.sends):
        # The rows that measure it stay until they have.
        apart = tuple((backend, rows) for backend, rows in job.synchronous if backend not in guesses)
        plain = replan(replace(job, synchronous=apart), options, terms, now)
    return _held(job, None, options, terms, now, plain)


def _is_guess(option: Option, *, starts: bool = False) -> bool:
    """Whether its rate is a guess; also of one that has rows and stands still, where it may be that it `starts`."""
    if not isinstance(option, SynchronousOption) or option.pace.spread < GUESSED:
        return False
    return option.pace.rate > 0 or (starts and option.timed)


def _unknown_prices(options: Sequence[Option], terms: Terms, *, starts: bool = False) -> list[SynchronousOption]:
    """Routes that are paid by the hour and whose rate is a guess, those first that cost least if they are fast."""
    found = [
        one
        for one in options
        if isinstance(one, SynchronousOption)
        and one.timed
        and _is_guess(one, starts=starts)
        and objection(one, terms) is None
    ]
    return sorted(found, key=lambda one: _fast(one, FASTER).cost.p50)


def _fast(option: SynchronousOption, chance: float) -> SynchronousOption:
    """The same as fast as it is with this chance, and as cheap as that makes it."""
    times = math.exp(NORMAL.inv_cdf(1.0 - chance) * option.pace.spread)
    each = option.cost.p50 / Decimal(repr(times))
    pace = replace(option.pace, rate=option.pace.rate * times, spread=GUESSED / 2)
    return replace(option, cost=Cost(each, each), pace=pace)


def _rows(option: SynchronousOption, waiting: int) -> int:
    """How many rows show how fast it is; 0 where those are too many of the job."""
    rows = max(LEAST_ROWS, int(_fast(option, FAST).pace.rate * WORK))
    most = int(waiting * MOST_ROWS)
    return min(rows, most) if most >= LEAST_ROWS else 0


def _held(
    job: Open, probe: Send | None, options: Sequence[Option], terms: Terms, now: datetime, plain: Decision
) -> Decision | None:
    """A look while routes are measured: of what `plain` does, rows wait that would cost more than elsewhere, all but
    a few that measure where they would go. None where nothing waits, or the deadline would be kept less surely."""
    if terms.late_cost is not None or plain.cancel or any(send.source is not None for send in plain.sends):
        return None
    by_name = {one.backend: one for one in options}
    now_sent = _at_once(job, probe, plain, by_name, terms)
    left = job.waiting - sum(send.rows for send in now_sent)
    if left <= 0:
        return None
    probed = frozenset() if probe is None else frozenset({probe.backend})
    at_work = {name for name, rows in job.synchronous if rows}
    guesses = {one.backend for one in _unknown_prices(options, terms, starts=True)} & at_work
    chance, reroute = 0.0, None
    for lost, gone in ((False, probed), (True, probed | guesses)):
        late, then = _later(job, now_sent, lost, gone, left, by_name, now)
        found = replan(late, [one for one in options if one.backend not in gone], terms, then)
        if found.chance > chance:
            chance, reroute = found.chance, found.reroute
    if chance < min(terms.target, plain.chance - LESS_SURE):
        return None
    why = f"{number_that(left, 'row', 'wait')} until a guessed speed is measured; {chance:.1%} likely to be in time"
    at = now + timedelta(seconds=PAUSE)
    return Decision((), tuple(now_sent), why, at, min(plain.chance, chance), plain.expected, reroute, waits=True)


def _at_once(job: Open, probe: Send | None, plain: Decision, by_name: dict[str, Option], terms: Terms) -> list[Send]:
    """The probe, and what of `plain` does not wait: rows where they are as cheap as anywhere, and a few for each
    route that is dearer and a guess as well."""
    there = {name for name, rows in job.synchronous if rows}
    at_work = there | ({probe.backend} if probe else set())
    guesses = [
        _fast(one, FASTER)
        for one in _unknown_prices(list(by_name.values()), terms, starts=True)
        if one.backend in at_work
    ]
    cheap = min([by_name[send.backend].cost.p50 for send in plain.sends] + [one.cost.p50 for one in guesses])
    found = [] if probe is None else [probe]
    for send in plain.sends:
        option = by_name[send.backend]
        if option.cost.p50 <= cheap:
            found.append(send)
        elif _is_guess(option) and send.backend not in there:
            found.append(replace(send, rows=min(send.rows, LEAST_ROWS)))
    return found


def _later(
    job: Open,
    sent: Sequence[Send],
    lost: bool,
    gone: frozenset[str],
    left: int,
    by_name: dict[str, Option],
    now: datetime,
) -> tuple[Open, datetime]:
    """Where the rows are after a while in which the others waited, and those at routes that are `gone` came back
    undone; all that was sent as well, where that is `lost`. And when that is."""
    synchronous, sent_now = dict(job.synchronous), []
    leaves = 0.0
    for name in gone & synchronous.keys():
        left += synchronous.pop(name)
        leaves = max(leaves, by_name[name].cancel_seconds)
    for send in sent:
        option = by_name[send.backend]
        if lost or send.backend in gone:
            left += send.rows
            leaves = max(leaves, option.cancel_seconds)
        elif isinstance(option, SynchronousOption):
            synchronous[send.backend] = synchronous.get(send.backend, 0) + send.rows
        else:
            sent_now.append(Running("unsent", send.backend, send.rows, now))
    then = now + timedelta(seconds=AHEAD + leaves)
    # Batches that run are taken to be as young then as now, and so to have less time.
    running = [replace(one, submitted_at=one.submitted_at + (then - now)) for one in (*job.running, *sent_now)]
    return replace(job, waiting=left, running=tuple(running), synchronous=tuple(synchronous.items())), then
