"""Ours: the planner at submission, the guard at each look, and forecasts that learn from night to night."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from benchmarks.routing.night import BatchNight, LaneNight, Night
from benchmarks.routing.world import Action, Cancel, Report, ToBatch, ToLane, View
from orchestrator.forecast import Pace, Seen, longest, pace, turnaround
from orchestrator.planner import BatchOption, Cost, Open, Option, PacedOption, Running, Terms, plan, replan

FIRST = datetime(2026, 1, 1, 20, tzinfo=UTC)
REMEMBERED = 120
"""Nights that are looked back upon: older ones weigh next to nothing."""
CANCEL = 600.0


class Ours:
    """What `orch` does, as far as a simulation can tell."""

    def __init__(self, name: str = "ours") -> None:
        self.name = name
        self._seen: dict[str, list[Seen]] = defaultdict(list)
        self._rates: dict[str, list[float]] = defaultdict(list)
        self._cancels: list[float] = []
        self._paces: dict[str, Pace] = {}
        self._cancel = CANCEL

    def look(self, view: View) -> tuple[list[Action], float]:
        """Plan on submission, then look after it."""
        begin = FIRST + timedelta(days=view.night.at)
        now = begin + timedelta(seconds=view.now)
        terms = Terms(
            begin + timedelta(seconds=view.night.deadline),
            None if view.night.budget is None else Decimal(repr(view.night.budget)) - self._spent(view),
            local_only=view.night.local_only,
        )
        if view.now == 0.0:
            self._foresee(view.night)
            planned = plan(view.waiting, self._options(view), terms, now)
            batches = {batch.name for batch in view.night.batches}
            actions: list[Action] = [
                ToBatch(route.backend, route.rows) if route.backend in batches else ToLane(route.backend, route.rows)
                for route in planned.routes
            ]
            return actions, 60.0
        return self._guard(view, terms, begin, now)

    def learn(self, view: View, report: Report) -> None:
        """Remember how long batches took, how fast the routes were, and how long a cancel took."""
        begin = FIRST + timedelta(days=view.night.at)
        for batch in view.night.batches:
            slowest = max(
                self._tonight(view, batch.name, begin), key=lambda one: (one.seconds, not one.ended), default=None
            )
            if slowest is not None:
                self._seen[batch.name].append(slowest)
                del self._seen[batch.name][:-REMEMBERED]
        for lane, rate in report.rates.items():
            self._rates[lane].append(rate)
            del self._rates[lane][:-REMEMBERED]
        self._cancels = [*self._cancels, *report.cancels][-REMEMBERED:]

    @staticmethod
    def _tonight(view: View, backend: str, begin: datetime) -> list[Seen]:
        rows = view.night.shard_rows
        seen = [Seen(begin, seconds, ended, rows) for name, seconds, ended in view.over if name == backend]
        sent = [one.sent for one in view.shards if one.backend == backend and one.sent is not None]
        return [*seen, *(Seen(begin, view.now - at, False, rows) for at in sent)]

    def _foresee(self, night: Night) -> None:
        for lane in night.lanes:
            self._paces[lane.name] = pace(self._rates[lane.name], assumed=lane.nominal)
        self._cancel = longest(self._cancels, assumed=CANCEL)

    def _guard(self, view: View, terms: Terms, begin: datetime, now: datetime) -> tuple[list[Action], float]:
        def at(seconds: float) -> datetime:
            return begin + timedelta(seconds=seconds)

        first = min((one.sent for one in view.shards if one.sent is not None), default=view.now)
        coming = [one for one in view.shards if one.cancelled is not None]
        decision = replan(
            Open(
                view.waiting,
                view.pulled,
                sum(one.rows - one.done for one in coming),
                at(max((one.cancelled or 0.0) + self._cancel for one in coming)) if coming else None,
                tuple(
                    Running(
                        str(one.number), one.backend, one.rows - one.done, at(first if one.sent is None else one.sent)
                    )
                    for one in view.shards
                    if one.cancelled is None
                ),
                tuple((lane.name, lane.queue) for lane in view.lanes.values() if lane.queue),
            ),
            self._options(view),
            terms,
            now,
        )
        actions: list[Action] = [Cancel(int(batch)) for batch in decision.cancel]
        batches = {batch.name for batch in view.night.batches}
        for send in decision.sends:
            if send.backend in batches:
                actions.append(ToBatch(send.backend, send.rows, send.source))
            else:
                actions.append(ToLane(send.backend, send.rows, send.source))
        return actions, (decision.next_look - now).total_seconds()

    def _options(self, view: View) -> list[Option]:
        begin = FIRST + timedelta(days=view.night.at)
        options: list[Option] = [self._batch(batch, view, begin) for batch in view.night.batches]
        return [*options, *(self._lane(lane, view) for lane in view.night.lanes)]

    def _batch(self, batch: BatchNight, view: View, begin: datetime) -> BatchOption:
        seen = [*self._seen[batch.name], *self._tonight(view, batch.name, begin)]
        return BatchOption(
            batch.name,
            batch.location,
            _cost(batch.price),
            turnaround(seen, rows=view.night.shard_rows, at=begin),
            cancel_seconds=self._cancel,
            room=batch.room,
        )

    def _lane(self, lane: LaneNight, view: View) -> PacedOption:
        seen = view.lanes[lane.name]
        usual = self._paces[lane.name]
        start = 0.0 if seen.queue else lane.start
        expected = Pace(usual.rate, usual.spread, usual.source, seen.ahead, start)
        if not seen.is_up:
            expected = expected.now(0.0, 60.0)
        elif seen.worked >= 60.0:
            expected = expected.now(seen.rate, seen.worked)
        return PacedOption(lane.name, lane.location, _cost(lane.price), expected)

    @staticmethod
    def _spent(view: View) -> Decimal:
        return Decimal(repr(round(view.spent, 9)))


def _cost(price: float) -> Cost:
    each = Decimal(repr(price))
    return Cost(each, each * Decimal("1.1"))
