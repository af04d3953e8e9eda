"""Engines of our own: the states they are in, and what the rows that wait ask of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from statistics import median

from orchestrator.core.model import PICO

STARTS = 9
"""So many latest starts say how long the next takes."""


class EngineState(StrEnum):
    """Where an engine of a fleet is."""

    COLD = "cold"  # not running
    PENDING = "pending"  # asked for, and no machine has room for it yet
    STARTING = "starting"  # started, and not ready yet
    WARM = "warm"  # ready: it takes rows
    DRAINING = "draining"  # gets no more rows; those in flight may come back
    ASLEEP = "asleep"  # running, its GPU memory freed
    GIVEN_UP = "given_up"  # it failed to start too often


@dataclass(frozen=True, slots=True)
class EngineHold:
    """GPUs that an engine has held, from its start until it was gone, or until `seen_at` where it was not seen to go.

    `warm_at` is when it took its first rows, None if it never did. `cost_per_hour` is that of one GPU, in dollars.
    """

    home: str
    backend: str
    engine: str
    model: str
    gpus: int
    began_at: datetime
    seen_at: datetime
    warm_at: datetime | None
    is_over: bool
    cost_per_hour: Decimal

    @property
    def hours(self) -> float:
        """How long it held them."""
        return max(0.0, (self.seen_at - self.began_at).total_seconds() / 3600)

    @property
    def cost(self) -> Decimal:
        """What the GPUs cost in that time, whether they worked or not; dollars."""
        return (Decimal(repr(self.hours)) * self.gpus * self.cost_per_hour).quantize(PICO)


def start_seconds(holds: Iterable[EngineHold], backend: str) -> dict[str, float]:
    """How many seconds the models of a backend took to start, by the median of their latest starts."""
    found: dict[str, list[float]] = {}
    for one in sorted(holds, key=lambda one: one.began_at):
        if one.backend == backend and one.warm_at is not None:
            found.setdefault(one.model, []).append((one.warm_at - one.began_at).total_seconds())
    return {model: median(seconds[-STARTS:]) for model, seconds in found.items()}


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """What an upstream has done since it joined, in tokens of rows that have ended, and how many rows are out.

    `rows` have ended there.
    """

    url: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    in_flight: int
    rows: int = 0


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Rows of unfinished batches that name a model; None stands for whatever model there is.

    `rows` have no result yet, and `in_flight` of them are out at an engine. `deadline` is the first, in seconds of
    Unix time, and `due` are all of them, each with its rows.
    """

    model: str | None
    rows: int
    in_flight: int
    deadline: float
    due: tuple[tuple[float, int], ...] = ()

    @property
    def waiting(self) -> int:
        """Rows that no engine has taken."""
        return max(0, self.rows - self.in_flight)
