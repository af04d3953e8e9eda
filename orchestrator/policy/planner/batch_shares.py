"""A batch share: rows in batches of one backend, which are done at a time of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from orchestrator.policy.planner.types import BatchOption

_MOST_WAVES = 24
"""More times than that no quota is filled for one job."""


class BatchShare(Struct, frozen=True):
    """Rows in batches of one backend; those that were sent have run for `age` seconds.

    `kept` is the share of them that is expected to be done where they are rerouted when half of all batches are.
    Those that are `owed` are paid for whatever happens: they are done, or a silent provider goes on with them.
    """

    option: BatchOption
    rows: int
    age: float = 0.0
    kept: float = 0.0
    owed: int = 0

    @property
    def price(self) -> float:
        """Dollars a row."""
        return float(self.option.cost.p50)

    @property
    def free_after(self) -> float:
        """Seconds until rows are free to go elsewhere, once that is decided."""
        return self.option.cancel_seconds

    @property
    def usually_free_after(self) -> float:
        """The same as it is in half of all cases."""
        usual = self.option.cancel_usual
        return self.free_after if usual is None else min(usual, self.free_after)

    def answers(self, seconds: float) -> float:
        """P(the provider answers by then): one that was silent for some time may be for as long again."""
        if self.option.silent <= 0:
            return 1.0
        return max(0.0, seconds) / (max(0.0, seconds) + self.option.silent)

    def by(self, seconds: float) -> float:
        """P(all of them are done so many seconds from now, and told).

        Shards of a night are slow together, so they are done when one of them is; what does not fit the quota goes
        in waves, each as slow as the first.
        """
        each = min((seconds + self.age) / self.waves, self.option.window)
        return self.option.turnaround.by(each, self.age) * self.answers(seconds)

    def lost(self, seconds: float) -> float:
        """The share of the rows that is expected to be left when they are rerouted so many seconds from now."""
        waves, option = self.waves, self.option
        kept = self.kept * min(1.0, seconds / option.turnaround.within(0.5, self.age)) if self.kept else 0.0
        if waves == 1:
            return (1.0 - self.by(seconds)) * (1.0 - kept)
        left, lost = self.rows, 0.0
        for wave in range(1, waves + 1):
            rows = min(left, option.room or left)
            each = min((seconds + self.age) / wave, option.window)
            lost += rows * (1.0 - option.turnaround.by(each, self.age))
            left -= rows
        return lost / self.rows * (1.0 - kept)

    def paid(self, lost: float) -> float:
        """The share of the rows to be paid for there, if the share `lost` of them is left when they are rerouted."""
        return 1.0 - lost * (1.0 - self.owed / self.rows)

    def within(self, chance: float) -> float:
        """Seconds from now by which they are done with this chance; infinite where they expire before."""
        each = self.option.turnaround.within(chance, self.age)
        return each * self.waves - self.age if each <= self.option.window else float("inf")

    @property
    def waves(self) -> int:
        """How many times the quota is filled, others' batches that are there among them."""
        room = self.option.room
        if room is None:
            return 1
        behind = 0 if self.age else self.option.behind
        return max(1, min(_MOST_WAVES, -(-(self.rows + behind) // max(1, room))))


def done_by(batch_shares: Sequence[BatchShare], seconds: float) -> float:
    """P(all batches are done by then): of one backend all at once, of several each by itself."""
    worst: dict[str, float] = {}
    for batch_share in batch_shares:
        worst[batch_share.option.backend] = min(worst.get(batch_share.option.backend, 1.0), batch_share.by(seconds))
    chance = 1.0
    for each in worst.values():
        chance *= each
    return chance


def most_rows(option: BatchOption) -> float:
    """How many rows a plan may give to a batch option: what fits its queue, one batch after another."""
    return math.inf if option.room is None else option.room * _MOST_WAVES
