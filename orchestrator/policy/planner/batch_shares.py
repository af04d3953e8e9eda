"""Rows in batches of one backend, and P(they are done) over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from orchestrator.policy.planner.types import BatchOption

RARE = 0.05
"""An "at most" leaves out costs that arise on this share of nights or on fewer nights."""
_MAX_WAVES = 24
"""Maximum number of times that one job may fill a batch quota. A plan gives no option more rows than this allows."""


class BatchShare(Struct, frozen=True):
    """Rows in batches of one backend. The batches have run for `age` seconds, 0 if not yet sent.

    `owed` rows are billed even after a cancel: they are done, or their provider is silent. `begun` is True if the
    first row of each batch was seen done.
    """

    option: BatchOption
    rows: int
    age: float = 0.0
    owed: int = 0
    begun: bool = False

    @property
    def price(self) -> float:
        """Price in dollars per row."""
        return float(self.option.cost.p50)

    @property
    def billed(self) -> int:
        """Number of rows that are billed even after a cancel."""
        return self.owed if self.option.cancels else self.rows

    @property
    def billed_at_most(self) -> int:
        """Number of rows that are billed even after a cancel, except on one night in twenty."""
        return self.rows if self.option.paid_twice > RARE else self.billed

    @property
    def free_after(self) -> float:
        """Seconds from a cancel until its rows are free (95 % quantile)."""
        return self.option.cancel_seconds

    @property
    def usually_free_after(self) -> float:
        """Median seconds from a cancel until its rows are free."""
        usual = self.option.cancel_usual
        return self.free_after if usual is None else min(usual, self.free_after)

    def answers(self, seconds: float) -> float:
        """Return P(the provider answers within `seconds`). After s seconds of silence, it is t / (t + s) for t
        seconds.
        """
        if self.option.silent <= 0:
            return 1.0
        return max(0.0, seconds) / (max(0.0, seconds) + self.option.silent)

    def by(self, seconds: float) -> float:
        """Return P(all rows are done and their results known within `seconds` from now).

        Batches of one night are fully correlated, so P(all are done) equals P(one batch is done). Rows beyond the
        quota go in consecutive waves, each as slow as the first.
        """
        return self._wave_by(self.waves, seconds)

    def _wave_by(self, wave: int, seconds: float) -> float:
        option = self.option
        run_time = min((seconds + self.age) / wave, option.window)
        if option.silent <= 0:
            return option.turnaround.by(run_time, self.age)
        # A batch of a silent provider may have ended. It is known to have run only until the last response.
        ran = max(0.0, self.age - option.silent)
        return option.turnaround.by(run_time, ran) * self.answers(seconds)

    def runs_on(self, seconds: float, horizon: float) -> float:
        """Return P(no reroute is needed `seconds` from now).

        No reroute is needed if all rows are done by then. Nor is a reroute needed if two conditions hold: the first
        row is done by then, and all rows will be done by the horizon. The horizon is the number of seconds until the
        rows must be answered.
        """
        option = self.option
        done = self.by(seconds)
        if self.begun or option.begins >= 1.0 or self.waves > 1 or option.silent > 0 or not option.cancels:
            return done
        run_time = min((seconds + self.age) / option.begins, horizon + self.age, option.window)
        return max(done, option.turnaround.by(run_time, self.age / option.begins))

    def unfinished(self, seconds: float, horizon: float) -> float:
        """Return the expected share of unfinished rows if the batches are rerouted `seconds` from now."""
        waves, option = self.waves, self.option
        if waves == 1:
            return 1.0 - self.runs_on(seconds, horizon)
        left, unfinished = self.rows, 0.0
        for wave in range(1, waves + 1):
            rows = min(left, option.room or left)
            unfinished += rows * (1.0 - self._wave_by(wave, seconds))
            left -= rows
        return unfinished / self.rows

    def paid(self, unfinished: float) -> float:
        """Return the share of rows that is billed if a cancel leaves the share `unfinished`."""
        return 1.0 - unfinished * (1.0 - self.billed / self.rows)

    def within(self, chance: float) -> float:
        """Return the quantile at `chance` of the seconds until all rows are done. Returns infinity if the batches
        expire first.
        """
        run_time = self.option.turnaround.within(chance, self.age)
        return run_time * self.waves - self.age if run_time <= self.option.window else float("inf")

    @property
    def waves(self) -> int:
        """Number of times the quota is filled, other jobs' batches at the backend included."""
        room = self.option.room
        if room is None:
            return 1
        behind = 0 if self.age else self.option.behind
        return max(1, min(_MAX_WAVES, -(-(self.rows + behind) // max(1, room))))


def done_by(batch_shares: Sequence[BatchShare], seconds: float) -> float:
    """Return P(all batches are done within `seconds`): correlated within a backend, independent between backends."""
    if len(batch_shares) == 1:
        return batch_shares[0].by(seconds)
    chances: dict[str, float] = {}
    for batch_share in batch_shares:
        chances[batch_share.option.backend] = min(
            chances.get(batch_share.option.backend, 1.0), batch_share.by(seconds)
        )
    chance = 1.0
    for backend_chance in chances.values():
        chance *= backend_chance
    return chance


def most_rows(option: BatchOption) -> float:
    """Return the maximum number of rows that a plan may give to a batch option, in consecutive waves."""
    return math.inf if option.room is None else option.room * _MAX_WAVES
