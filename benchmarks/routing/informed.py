"""What a simple rule can reach that knows how such nights come: the best of a family, chosen on other nights.

A rule sends `share` of the rows to one synchronous option and the rest to a batch. Once the time left is `margin`
times what its last resort usually needs for the rows that are not done, and `spare` seconds, they go there. Nothing
is learned from night to night: who chose the parameters lived through a hundred nights of the same world before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from benchmarks.routing.night import Night
from benchmarks.routing.world import Action, Cancel, Look, Policy, Seen, Send, Sent, View

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MARGINS = (1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0)
SPARES = (120.0, 420.0)
LOOKS_EVERY = 30.0


@dataclass(frozen=True, slots=True)
class Tuned:
    """One rule of the family. Its last `resort` usually does `rate` rows a second; with `margin` 0 it has none."""

    batch: str | None
    option: str | None
    share: float
    resort: str | None = None
    rate: float = 1.0
    margin: float = 0.0
    spare: float = 0.0

    @property
    def name(self) -> str:
        """Its parameters."""
        first = " and ".join(
            [*([f"{self.share:.0%} {self.option}"] if self.option else []), *filter(None, [self.batch])]
        )
        return f"{first}; at {self.margin}x + {self.spare:.0f} s {self.resort}" if self.margin else first

    def look(self, view: View) -> Look:
        """Send what waits; take back what is late."""
        mine = [one for one in view.shards if one.job == view.job.name and one.collected is None]
        waiting = view.waiting + view.rerouted
        left = waiting + sum(one.rows - one.done for one in mine)
        actions: list[Action] = []
        if self.resort and view.now >= view.job.deadline - self.spare - self.margin * left / self.rate:
            actions += [Cancel(one.number) for one in mine if one.ended is None and one.backend != self.resort]
            if waiting:
                actions.append(Send(self.resort, waiting))
        elif waiting:
            actions += self._sends(view, waiting)
        return Look(actions, LOOKS_EVERY)

    def learn(self, night: Night, shards: list[Sent], progress: list[Seen]) -> None:
        """It does not."""

    def _sends(self, view: View, waiting: int) -> Iterator[Action]:
        paced = waiting if self.batch is None else max(view.rerouted, round(self.share * waiting))
        if paced and (name := self.option or self.resort):
            yield Send(name, paced)
        if self.batch is not None and waiting > paced:
            yield Send(self.batch, waiting - paced)


def family(nights: Sequence[Night]) -> list[Policy]:
    """All rules that such nights have the routes for."""
    night = nights[0]
    local_only = any(job.local_only for job in night.jobs)
    batches = [] if local_only else [batch.name for batch in night.batches]
    options = [sync.name for sync in night.sync_options if sync.location == "local" or not local_only]
    alone = [Tuned(None, option, 1.0) for option in options] + [Tuned(batch, None, 0.0) for batch in batches]
    divided = [Tuned(batch, option, share) for batch, option, share in product(batches, options, SHARES)]
    found: list[Policy] = [*alone]
    for first, resort, margin, spare in product([*alone, *divided], options, MARGINS, SPARES):
        if first.batch is not None or first.option != resort:
            rate = _usual_rate(nights, resort)
            found.append(replace(first, resort=resort, rate=rate, margin=margin, spare=spare))
    return found


def _usual_rate(nights: Sequence[Night], name: str) -> float:
    options = [sync for night in nights for sync in night.sync_options if sync.name == name]
    return sum(one.rows_between(0.0, 3600.0) / 3600.0 for one in options) / len(options)
