"""The simple rules that ours is compared with. Each knows rows, deadline, prices, and the usual rate of a route."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.routing.night import Night
from benchmarks.routing.world import Action, Cancel, Look, Policy, Seen, Send, Sent, View

EACH = 300.0
MARGIN = 1.6
UNKNOWN_RATE = 1.0


class Fixed:
    """Everything to one route, which the night decides."""

    def __init__(self, name: str, route: Callable[[View], str]) -> None:
        self.name = name
        self._route = route

    def look(self, view: View) -> Look:
        """Send what waits."""
        rows = view.waiting + view.rerouted
        return Look([Send(self._route(view), rows)] if rows else [], 3600.0)

    def learn(self, night: Night, shards: list[Sent], progress: list[Seen]) -> None:
        """It does not."""


class PullBack:
    """Batch first; what is not done at deadline - 1.6 x the time that the sure route needs for it is rerouted."""

    def __init__(self, sync: str) -> None:
        self.name = f"pull back 1.6x to {sync}"
        self._sync = sync
        self._rates: list[float] = []

    def look(self, view: View) -> Look:
        """Pull back when it is time."""
        actions: list[Action] = []
        mine = [one for one in view.shards if one.job == view.job.name]
        if not mine:
            actions.append(Send(view.night.batches[0].name, view.waiting))
        elif view.waiting + view.rerouted:
            actions.append(Send(self._sync, view.waiting + view.rerouted))
        sync_options = {sync.name for sync in view.night.sync_options}
        running = [
            one for one in mine if one.ended is None and one.rerouted is None and one.backend not in sync_options
        ]
        left = sum(one.rows - one.done for one in running)
        wait = view.job.deadline - MARGIN * left / self._rate(view.night) - view.now
        if running and wait <= 0:
            actions += [Cancel(one.number) for one in running]
        return Look(actions, min(EACH, max(30.0, wait)))

    def learn(self, night: Night, shards: list[Sent], progress: list[Seen]) -> None:
        """Remember how fast the sure route was."""
        for one in shards:
            if one.backend == self._sync and one.sent is not None and one.ended is not None and one.done > 100:
                self._rates.append(one.done / max(1.0, one.ended - one.sent))

    def _rate(self, night: Night) -> float:
        rates = self._rates[-50:]
        nominal = next(sync.nominal for sync in night.sync_options if sync.name == self._sync)
        return sum(rates) / len(rates) if rates else nominal or UNKNOWN_RATE


def _by_class(view: View) -> str:
    names = [sync.name for sync in view.night.sync_options]
    left = view.job.deadline - view.job.at
    if left < 3600.0:
        return "realtime"
    if left < 6 * 3600.0:
        return "flex" if "flex" in names else "realtime"
    return view.night.batches[0].name


def rules(night: Night) -> list[Policy]:
    """The rules that such nights have the routes for."""
    local_only = any(job.local_only for job in night.jobs)
    sync_options = {sync.name for sync in night.sync_options if sync.location == "local" or not local_only}
    found: list[Policy] = []
    if not local_only and night.batches:
        found.append(Fixed("always batch", lambda view: view.night.batches[0].name))
    if "local" in sync_options:
        found.append(Fixed("always local", lambda view: "local"))
    if "realtime" in sync_options:
        found.append(Fixed("always realtime", lambda view: "realtime"))
        if night.batches:
            found.append(Fixed("by deadline class", _by_class))
    if not local_only and night.batches:
        found += [PullBack(sync) for sync in ("local", "realtime") if sync in sync_options]
    return found
