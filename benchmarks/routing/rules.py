"""The simple rules that ours is compared with. Each knows rows, deadline, prices, and the usual rate of a route."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.routing.night import Night
from benchmarks.routing.world import Action, Cancel, Policy, Report, ToBatch, ToLane, View

EACH = 300.0
MARGIN = 1.6


class Fixed:
    """Everything to one route, which the night decides."""

    def __init__(self, name: str, route: Callable[[Night], str]) -> None:
        self.name = name
        self._route = route

    def look(self, view: View) -> tuple[list[Action], float]:
        rows = view.waiting + view.pulled
        if not rows:
            return [], 3600.0
        route = self._route(view.night)
        if route in view.lanes:
            return [ToLane(route, rows)], 3600.0
        return [ToBatch(route, rows)], 3600.0

    def learn(self, view: View, report: Report) -> None:
        """It does not."""


class PullBack:
    """Batch first; what is not done at deadline - 1.6 x the time that the sure route needs for it is pulled back."""

    def __init__(self, lane: str) -> None:
        self.name = f"pull back 1.6x to {lane}"
        self._lane = lane
        self._rates: list[float] = []

    def look(self, view: View) -> tuple[list[Action], float]:
        actions: list[Action] = []
        if view.now == 0.0:
            actions.append(ToBatch(view.night.batches[0].name, view.waiting))
        elif view.waiting + view.pulled:
            actions.append(ToLane(self._lane, view.waiting + view.pulled))
        running = [shard for shard in view.shards if shard.cancelled is None]
        left = sum(shard.rows - shard.done for shard in running)
        wait = view.night.deadline - MARGIN * left / self._rate(view.night) - view.now
        if running and view.now and wait <= 0:
            actions += [Cancel(shard.number) for shard in running]
        return actions, min(EACH, max(30.0, wait))

    def learn(self, view: View, report: Report) -> None:
        if self._lane in report.rates:
            self._rates.append(report.rates[self._lane])

    def _rate(self, night: Night) -> float:
        rates = self._rates[-50:]
        nominal = next(lane.nominal for lane in night.lanes if lane.name == self._lane)
        return sum(rates) / len(rates) if rates else nominal


def _by_class(night: Night) -> str:
    names = [lane.name for lane in night.lanes]
    if night.deadline < 3600.0:
        return "realtime"
    if night.deadline < 6 * 3600.0:
        return "flex" if "flex" in names else "realtime"
    return night.batches[0].name


def rules(night: Night) -> list[Policy]:
    """The rules that such nights have the routes for."""
    lanes = {lane.name for lane in night.lanes if lane.location == "local" or not night.local_only}
    found: list[Policy] = []
    if not night.local_only:
        found.append(Fixed("always batch", lambda night: night.batches[0].name))
    if "local" in lanes:
        found.append(Fixed("always local", lambda night: "local"))
    if "realtime" in lanes:
        found.append(Fixed("always realtime", lambda night: "realtime"))
        found.append(Fixed("by deadline class", _by_class))
    if not night.local_only:
        found += [PullBack(lane) for lane in ("local", "realtime") if lane in lanes]
    return found
