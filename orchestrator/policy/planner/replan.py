"""Replanning: `replan` decides what to do now with a job's open rows. Pure, and cheap."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.counts import number_of, number_that
from orchestrator.core.probability_words import chance_words
from orchestrator.policy.planner.batch_shares import BatchShare, done_by
from orchestrator.policy.planner.candidate_plans import WAITS, CandidatePlan, Sources, arrival, chance_of
from orchestrator.policy.planner.capacity import DETECTION_SECONDS, GIVE_UP_SECONDS, Capacity, Rows
from orchestrator.policy.planner.cheaper_hours import price_over_time, starts
from orchestrator.policy.planner.checks import check
from orchestrator.policy.planner.explanations import clock
from orchestrator.policy.planner.planning_problem import (
    batches_of,
    capacity_of,
    cost_of_later,
    deduct,
    money,
    objection,
    reroute_of,
)
from orchestrator.policy.planner.search import MIN_CHANCE, Chosen, Position, best
from orchestrator.policy.planner.standstills import (
    MIN_MOVE_SHARE,
    rows_can_stay,
    transfers,
    until_return,
    with_probe,
)
from orchestrator.policy.planner.types import (
    PROBE_ROWS,
    SLIPS,
    BatchOption,
    Cost,
    Decision,
    Open,
    Option,
    Running,
    Send,
    SynchronousOption,
    Terms,
)

MIN_CHANCE_GAIN = 0.05
"""If no plan meets the target, a move or a cancel must raise P(in time) by more than this."""
MIN_GIVE_UP_CHANCE = 0.5
"""Minimum P(in time elsewhere) for moving the rows of a cancel that takes too long to other backends."""
MIN_BATCH_CHANCE = 0.5
"""Minimum P(done before its reroute) of a batch that takes over rows."""
MIN_TIME_GAIN = 0.2
"""If the job is late anyway, a move must shorten the time until all rows are done by at least this share."""
MIN_MOVE_GAIN = 0.02
"""If no plan meets the target, a move between options must raise P(in time) by at least this much.

A fifth of the present P(late) is enough if that is less.
"""
MIN_REPLAN_SECONDS, MAX_REPLAN_SECONDS = 30.0, 1800.0
"""Shortest and longest time until the next replanning, in seconds."""
WATCH_SECONDS = DETECTION_SECONDS / 2
"""Maximum seconds until the next replanning while other options could take over rows."""


class _Board(Struct, frozen=True):
    """State of a job for one replanning.

    `batches` may get rows. `held` counts the rows at each usable option. `excluded` are rows at options with an
    objection, which must give the rows back. orch waits at most `cancel_wait` seconds for a cancel (infinite: no
    limit). After that, it sends the rows to other backends.
    """

    ours: Capacity
    batches: list[BatchOption]
    by_name: dict[str, Option]
    held: Rows
    excluded: Sources
    terms: Terms
    cancel_wait: float

    def best(self, position: Position) -> Chosen | None:
        return best(position, self.batches, self.ours, self.terms, all_fallbacks=False)

    def best_of_all(self, position: Position) -> Chosen | None:
        """Return the best candidate plan, including plans that take rows back from options."""
        return _dear_to_cheaper(position, self, _surplus_to_batches(position, self, self.best(position)))


def replan(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision:
    """Decide what to do now with a job's open rows.

    A synchronous option with an objection gives its rows back. Batches at a backend with an objection keep running.
    Waiting rows keep waiting for a cheaper hour if the target is still met. Raises KeyError if a backend that holds
    rows is not among the options, and ValueError for invalid figures.
    """
    check(options, terms, now, job)
    send_now = best = _replan(job, price_over_time(options, _open_rows(job)), terms, now)
    if not job.waiting or job.rerouted or job.coming or send_now.cancel or any(one.source for one in send_now.sends):
        return send_now
    held = dict(job.synchronous)
    if any(isinstance(one, SynchronousOption) and one.cost_steps and held.get(one.backend) for one in options):
        return send_now  # rows done before the cheaper hour cost the present price
    for start, then in starts(options, terms, now):
        # Running batches keep their age, so they seem to have less time, which is the safe side.
        young = tuple(replace(one, submitted_at=one.submitted_at + (start - now)) for one in job.running)
        later = _replan(replace(job, running=young), price_over_time(then, _open_rows(job)), terms, start)
        is_sure = bool(later.sends) and later.chance >= terms.target
        if is_sure and (best.chance < terms.target or later.expected < best.expected):
            best = _decide_to_wait(later, send_now, start, now)
    return best


def _open_rows(job: Open) -> int:
    placed = sum(rows for _, rows in job.synchronous) + sum(one.rows for one in job.running)
    return job.waiting + job.rerouted + job.coming + placed


def _decide_to_wait(later: Decision, found: Decision, start: datetime, now: datetime) -> Decision:
    saved = f", which saves {1 - later.expected / found.expected:.0%}" if found.expected > later.expected else ""
    why = f"rows wait until {clock(start, now)}{saved}; {chance_words(later.chance)} likely to be in time"
    next_look = min(start, now + timedelta(seconds=MAX_REPLAN_SECONDS))
    return Decision((), (), why, next_look, later.chance, later.expected, later.reroute, waits=True)


def _replan(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> Decision:
    """Decide as `replan` does, but without waiting for a cheaper hour."""
    board = _board(job, options, terms, now)
    rest = _without_probes(job, board, now)
    chosen = _choose(rest, board, now)
    if chosen is None:
        return _over_budget(job, board, now)
    ours = board.ours
    chosen, back = until_return(chosen, ours)
    chosen = with_probe(chosen, ours, board.batches, job.waiting)
    candidate = chosen.candidate
    moves = [*_moves(chosen, ours), *back]
    wait = board.cancel_wait
    probes = _ended_probes(job, rest, candidate, terms, now)
    reroute = reroute_of(candidate, ours, now)
    return Decision(
        (*candidate.cancel, *probes),
        (*_sends(job, candidate, ours), *moves),
        _reason_to_wait(back, chosen)
        or _reason(job, chosen, moves, ours, probes, None if reroute is None else clock(reroute.at, now)),
        now + timedelta(seconds=min(_next_replan(candidate, ours), max(MIN_REPLAN_SECONDS, wait))),
        chosen.chance,
        money(chosen.expected) + cost_of_later(job.later, options, terms, job.later_cost).p50,
        reroute,
        gives_up_at=None if math.isinf(wait) else now + timedelta(seconds=wait),
    )


def _wait_for_cancels(job: Open, ours: Capacity, held: Rows, options: Sequence[Option], now: datetime) -> float:
    """Return the longest wait for a running cancel, in seconds, before its rows are sent to other backends.

    Returns infinity if no cancel takes too long, or if other backends could not do the rows in time. Also infinite if
    the budget does not cover paying twice.
    """
    if not job.coming or not held:
        return math.inf
    fallback = len(held)
    burden = job.coming + job.rerouted + sum(one.rows for one in job.running)
    if not job.is_coming_late and ours.fits(burden, held, _coming_in(job, now), fallback):
        return math.inf
    burden += job.coming_done
    prices = (option.cost.p95 for option in options if isinstance(option, BatchOption))
    if not ours.pays_twice(burden, max(prices, default=Decimal(0))):
        return math.inf
    wait = ours.wait_for_cancels(burden, held, fallback)
    if wait >= 2 * MIN_REPLAN_SECONDS:
        return wait
    # The last moment is now, or has just passed.
    is_likely = ours.horizon > 0 and (
        wait >= 0.0 or ours.chance(burden, held, GIVE_UP_SECONDS, fallback) >= MIN_GIVE_UP_CHANCE
    )
    return 0.0 if is_likely else math.inf


def _coming_in(job: Open, now: datetime) -> float:
    return max(0.0, (job.coming_at - now).total_seconds()) if job.coming_at else 0.0


def _without_probes(job: Open, board: _Board, now: datetime) -> Open:
    """Return the job as if its probes in batches were cancelled now. Their rows can be taken back at any time."""
    probes = [one for one in job.running if one.is_probe]
    if not probes or not board.ours.sync_options:
        return job
    back = now + timedelta(seconds=max(_option_of(board, one).cancel_seconds for one in probes))
    return replace(
        job,
        running=tuple(one for one in job.running if not one.is_probe),
        coming=job.coming + sum(one.rows for one in probes),
        coming_at=max(back, job.coming_at or back),
    )


def _ended_probes(job: Open, rest: Open, candidate: CandidatePlan, terms: Terms, now: datetime) -> tuple[str, ...]:
    """Return the batches of probes to cancel.

    A probe ends if only probes are left, if other batches are rerouted, or halfway to the deadline.
    """
    if rest is job:
        return ()
    places = rest.waiting, rest.rerouted, len(rest.running), job.coming, *(rows for _, rows in rest.synchronous)
    ends = candidate.cancel or not any(places)
    probes = (one for one in job.running if one.is_probe)
    return tuple(one.batch for one in probes if ends or now - one.submitted_at >= terms.deadline - now)


def _over_budget(job: Open, board: _Board, now: datetime) -> Decision:
    """Return the decision for a job without a candidate plan within the budget: send nothing new, and let batches
    run.
    """
    at = _position(job, board, job.running, 0, now)
    candidate = CandidatePlan(at.batch_shares, (0,) * len(at.held), at.held, at.coming, at.free_in, 0, None)
    waits = job.waiting + job.rerouted + job.coming > 0
    chance = 0.0 if waits else chance_of(candidate, board.ours)
    why = "nothing else fits the budget"
    return Decision((), (), why, now + timedelta(seconds=MAX_REPLAN_SECONDS), chance, money(0.0), None)


def _next_replan(candidate: CandidatePlan, ours: Capacity) -> float:
    due = ours.horizon / 8
    if candidate.reroute_after is not None:
        due = min(due, candidate.reroute_after / 3)
    if any(batch_share.option.silent > 0 for batch_share in candidate.batch_shares):
        due = min(due, WATCH_SECONDS)
    if any(candidate.held):
        due = min(due, WATCH_SECONDS if candidate.fallback > 1 else MAX_REPLAN_SECONDS)
        slack = ours.slack(candidate.coming, candidate.held, candidate.free_in, candidate.fallback, 2 * due)
        due = min(due, slack / 2)
    return min(MAX_REPLAN_SECONDS, max(MIN_REPLAN_SECONDS, due))


def _board(job: Open, options: Sequence[Option], terms: Terms, now: datetime) -> _Board:
    usable = [option for option in options if objection(option, terms) is None]
    ours = capacity_of(usable, terms, now, job.later, job.claims)
    by_name = {option.backend: option for option in options}
    synchronous = dict(job.synchronous)
    held = tuple(synchronous.pop(sync.option.backend, 0) for sync in ours.sync_options)
    unknown = [backend for backend in synchronous if backend not in by_name]
    if unknown:
        raise KeyError(unknown[0])
    within = deduct(terms, cost_of_later(job.later, options, terms, job.later_cost))
    sendable = [one for one in batches_of(usable) if one.silent <= 0]
    wait = _wait_for_cancels(job, ours, held, options, now)
    return _Board(ours, sendable, by_name, held, tuple(synchronous.items()), within, wait)


def _choose(job: Open, board: _Board, now: datetime) -> Chosen | None:
    """Return the best candidate plan. A reroute that is due within a minute is done now.

    If the plan meets the target and its reroute is due, orch may cancel only the batch with the most rows. The plan
    must then still meet the target, and be cheaper. Otherwise, orch cancels all running batches.

    If no plan without a cancel meets the target, orch may cancel all running batches. That plan must meet the target,
    or be clearly likelier to be in time. With `late_cost`, the cheaper plan wins.
    """
    running = sorted(job.running, key=lambda one: (-one.rows, one.batch))
    at = _position(job, board, running, 0, now)
    waiting = board.best_of_all(at)
    is_due = (
        waiting is not None
        and waiting.candidate.reroute_after is not None
        and waiting.candidate.reroute_after <= WAITS[0]
    )
    if waiting is None or not running or (waiting.holds and not is_due):
        return waiting
    if waiting.holds and len(running) > 1:
        largest_cancelled = board.best_of_all(_position(job, board, running, 1, now))
        if largest_cancelled and largest_cancelled.holds and largest_cancelled.value < waiting.value:
            return largest_cancelled
    all_cancelled = board.best_of_all(_position(job, board, running, len(running), now))
    if all_cancelled is None:
        return waiting
    if is_due:
        return all_cancelled
    if board.terms.late_cost is not None:
        return all_cancelled if all_cancelled.value < waiting.value else waiting
    # A plan that cancels holds however long cancels take, so its chance can be far below the chance of waiting.
    gain = board.terms.target - 1.0 if all_cancelled.holds else MIN_CHANCE_GAIN
    return all_cancelled if all_cancelled.chance > waiting.chance + gain else waiting


def _surplus_to_batches(position: Position, board: _Board, found: Chosen | None) -> Chosen | None:
    """Move rows that options cannot do in time to a batch, if that is better. A batch is cheaper than a late
    reroute.
    """
    held, sync_options, horizon = board.held, board.ours.sync_options, board.ours.horizon
    does = [sync.between(0.0, max(0.0, horizon), sync.rate) for sync in sync_options]
    surplus = [max(0, math.ceil(rows - done)) for rows, done in zip(held, does, strict=True)]
    if not board.batches or sum(surplus) <= MIN_MOVE_SHARE * sum(held):
        return found
    other = board.best(_release(position, board, surplus, to_batches=True))
    if other is None or not _is_better(other, found, board.terms):
        return found
    return (
        other
        if done_by(other.candidate.unsent, other.candidate.reroute_after or horizon) >= MIN_BATCH_CHANCE
        else found
    )


def _dear_to_cheaper(position: Position, board: _Board, found: Chosen | None) -> Chosen | None:
    """Move rows from expensive options to cheaper options with spare time if that is better.

    If no plan fits the budget, the rows at expensive options may be the reason.
    """
    if found is not None and not found.holds:
        return found
    held = board.held if found is None else found.candidate.held
    room = board.ours.room(held, 0.0, len(board.held), sure=False)
    dear = [0] * len(board.held)
    for place, (sync, rows) in enumerate(zip(board.ours.sync_options, board.held, strict=True)):
        less_dear = zip(board.ours.sync_options, room, strict=True)
        dear[place] = min(rows, int(sum(free for other, free in less_dear if other.price < sync.price)))
    if sum(dear) <= MIN_MOVE_SHARE * sum(board.held):
        return found
    other = board.best(_release(position, board, dear, to_batches=False))
    return other if other is not None and _is_better(other, found, board.terms) else found


def _release(position: Position, board: _Board, rows: Sequence[int], *, to_batches: bool) -> Position:
    each = zip(board.ours.sync_options, rows, strict=True)
    leaving = tuple((sync.option.backend, count) for sync, count in each if count)
    return replace(
        position,
        waiting=position.waiting + to_batches * sum(rows),
        rerouted=position.rerouted + (not to_batches) * sum(rows),
        left=position.left if to_batches else (),
        held=tuple(a - b for a, b in zip(board.held, rows, strict=True)),
        sources=(*position.sources, *leaving),
    )


def _is_better(other: Chosen, than: Chosen | None, terms: Terms) -> bool:
    if than is None:
        return True
    if terms.late_cost is not None or than.holds:
        return other.holds >= than.holds and other.value < than.value * (1.0 - MIN_MOVE_SHARE)
    return other.chance > than.chance + MIN_CHANCE_GAIN or (other.holds and other.chance >= than.chance)


def _position(job: Open, board: _Board, running: Sequence[Running], count: int, now: datetime) -> Position:
    """Return the position of all rows after cancelling the first `count` running batches."""
    cancelled, remaining = running[:count], running[count:]
    batch_shares: dict[str, BatchShare] = {}
    for one in remaining:
        option, age = _option_of(board, one), max(0.0, (now - one.submitted_at).total_seconds())
        same = batch_shares.get(one.backend)
        # Taking the age of the youngest batch for all batches of a backend is the safe side.
        rows, age = (one.rows + same.rows, min(age, same.age)) if same else (one.rows, age)
        owed = (same.owed if same else 0) + _billed_rows(one, option)
        begun = one.has_begun and (same is None or same.begun)
        batch_shares[one.backend] = BatchShare(option, rows, age, owed=owed, begun=begun)
    free_in, coming = _coming_in(job, now), job.coming + sum(one.rows for one in cancelled)
    wait = board.cancel_wait
    slips = SLIPS if math.isfinite(wait) or not job.is_coming_late else 1.0
    if wait + GIVE_UP_SECONDS < free_in:
        free_in, coming, slips = wait + GIVE_UP_SECONDS, coming + job.coming_done, 0.0
    slips = max([slips, *(_option_of(board, one).slips for one in cancelled)])
    latency = [_option_of(board, one).cancel_seconds for one in cancelled]
    usual = [option.cancel_usual or option.cancel_seconds for option in (_option_of(board, one) for one in cancelled)]
    return Position(
        job.waiting + sum(rows for _, rows in board.excluded),
        job.rerouted,
        coming,
        max(free_in, *latency) if latency else free_in,
        tuple(batch_shares.values()),
        board.held,
        tuple(one.batch for one in cancelled),
        board.excluded,
        max(free_in, *usual) if usual else free_in,
        _sunk_cost(cancelled, board),
        slips,
        tuple(sorted({*job.left, *(one.backend for one in cancelled)})),
    )


def _billed_rows(running: Running, option: BatchOption) -> int:
    """Return the number of rows billed even after a cancel.

    All rows are billed if they are done or if the cancel has no effect.
    """
    return running.rows if running.is_over or option.silent > 0 or not option.cancels else 0


def _sunk_cost(cancelled: Sequence[Running], board: _Board) -> Cost:
    p50 = p95 = Decimal(0)
    for one in cancelled:
        option = _option_of(board, one)
        p50 += _billed_rows(one, option) * option.cost.p50
        p95 += _billed_rows(one, option) * option.cost.p95
    return Cost(p50, p95)


def _option_of(board: _Board, running: Running) -> BatchOption:
    option = board.by_name[running.backend]
    assert isinstance(option, BatchOption)
    return option


def _sends(job: Open, candidate: CandidatePlan, ours: Capacity) -> list[Send]:
    """Return the orders to send the rows of a candidate plan.

    Batches take waiting rows first, then rows that leave an option, then rerouted rows.
    """
    pool: deque[tuple[str | None, int]] = deque([(None, job.waiting), *candidate.sources, (None, job.rerouted)])
    sends = [send for bet in candidate.unsent for send in _take(pool, bet.rows, bet.option.backend, from_end=False)]
    for sync, rows in zip(ours.sync_options, candidate.new, strict=True):
        sends += _take(pool, rows, sync.option.backend, from_end=True)
    # Rows that are already at the target stay there.
    return [send for send in sends if send.source != send.backend]


def _take(pool: deque[tuple[str | None, int]], rows: int, backend: str, *, from_end: bool) -> list[Send]:
    sends = []
    while rows:
        source, count = pool.pop() if from_end else pool.popleft()
        taken = min(rows, count)
        rows -= taken
        if count > taken:
            (pool.append if from_end else pool.appendleft)((source, count - taken))
        if taken:
            sends.append(Send(taken, backend, source))
    return sends


def _moves(chosen: Chosen, ours: Capacity) -> list[Send]:
    """Return moves of rows from options that are too slow. Rows stay if other options could still take them over
    later.
    """
    candidate = chosen.candidate
    before, held, fallback = candidate.before, candidate.held, candidate.fallback
    burden = candidate.coming + (0 if candidate.reroute_after is None else candidate.in_batches)
    release = ours.release_seconds(before)
    soonest = 2 * MIN_REPLAN_SECONDS + release
    waits = rows_can_stay(candidate, ours, soonest) and not _is_probe_left(candidate, ours)
    if not fallback or not any(before) or waits:
        return []
    sure_rows = [
        min(rows, int(sync.between(0.0, ours.until(place, fallback), sync.low))) if place < fallback else rows
        for place, (sync, rows) in enumerate(zip(ours.sync_options, held, strict=True))
    ]
    more = ours.fill(sum(held) - sum(sure_rows), ours.room(sure_rows, release, fallback, sure=True))
    after = [a + b for a, b in zip(sure_rows, more, strict=True)]
    helps = chosen.holds or _helps(candidate, after, max(soonest, arrival(candidate)), burden, ours)
    return transfers(before, held, after, ours) if helps else []


def _is_probe_left(candidate: CandidatePlan, ours: Capacity) -> bool:
    still = sum(rows for rows, low in zip(candidate.held, ours.lows, strict=True) if not low)
    others = sum(candidate.held) - still + candidate.in_batches + candidate.coming
    return 0 < still <= PROBE_ROWS and others <= still


def _helps(candidate: CandidatePlan, after: Sequence[int], later: float, burden: float, ours: Capacity) -> bool:
    """Return True if a move pays off although no plan holds and moved rows start over."""
    held, fallback = candidate.held, candidate.fallback
    if sum(max(0, b - a) for a, b in zip(held, after, strict=True)) < MIN_MOVE_SHARE * sum(held):
        return False
    if any(a > b and not low for a, b, low in zip(held, after, ours.lows, strict=True)):
        return True  # each wait for a stalled option lowers the chance a little, in the end to 0
    before = 0.0 if ours.horizon <= 0 else ours.chance(burden, held, later, fallback)
    if before < MIN_CHANCE or ours.slowest(held) > ours.horizon:
        # The chance counts moves to come, so waiting for them looks harmless until it is too late.
        return ours.slowest(after) <= (1.0 - MIN_TIME_GAIN) * ours.slowest(held)
    return ours.chance(burden, after, later, fallback) >= before + min(MIN_MOVE_GAIN, (1.0 - before) / 5)


def _reason(
    job: Open, chosen: Chosen, moves: Sequence[Send], ours: Capacity, probes: Sequence[str], reroute: str | None
) -> str:
    candidate, horizon = chosen.candidate, ours.horizon
    if horizon <= 0:
        return "the deadline has passed; open rows go where they finish soonest"
    likely = f"{chance_words(chosen.chance)} likely to be in time"
    if candidate.cancel:
        rows = sum(one.rows for one in job.running if one.batch in candidate.cancel)
        why = "later, the rest might not finish in time" if chosen.holds else "that is likelier than waiting"
        return f"{number_of(rows, 'row')} rerouted from {_names(candidate.cancel)}: {why}; {likely}"
    if moves:
        rows, places = sum(one.rows for one in moves), sorted({one.source for one in moves if one.source})
        rows_leave, them = number_that(rows, "row", "leave"), "it" if rows == 1 else "them"
        return f"{rows_leave} {_names(places)}, which would not finish {them} in time; {likely}"
    if not chosen.holds:
        return f"nothing is more likely to be in time; {likely}"
    if probes:
        rows = sum(one.rows for one in job.running if one.batch in probes)
        return f"{number_of(rows, 'row')} rerouted from {_names(probes)}: they measured its speed; {likely}"
    if reroute is not None:
        return f"there is time: batches still running at {reroute} are cancelled and rerouted; {likely}"
    for sync, rows in zip(ours.sync_options, candidate.held, strict=True):
        if rows > PROBE_ROWS and sync.option.pace.rate <= 0:
            return f"{number_that(rows, 'row', 'wait')} {_until_answers(sync.option.backend)}; {likely}"
    return f"on its way; {likely}"


def _until_answers(backend: str) -> str:
    return f"until {backend} answers again, or the last moment for a reroute"


def _reason_to_wait(back: Sequence[Send], chosen: Chosen) -> str:
    if not back:
        return ""
    rows, sources = sum(one.rows for one in back), sorted({one.source for one in back if one.source})
    waits = f"{number_that(rows, 'row', 'leave')} {_names(sources)} {_until_answers(back[0].backend)}"
    return f"{waits}; {chance_words(chosen.chance)} likely to be in time"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} batches"
