"""Engines of our own: the states they are in, and what the rows that wait ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """Where an engine of a fleet is."""

    COLD = "cold"  # not running
    STARTING = "starting"  # started, and not ready yet
    WARM = "warm"  # ready: it takes rows
    DRAINING = "draining"  # gets no more rows; those in flight may come back
    ASLEEP = "asleep"  # running, its GPU memory freed
    GIVEN_UP = "given_up"  # it failed to start too often


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """What an upstream has done since it joined, in tokens of rows that have ended, and how many rows are out."""

    url: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Rows of unfinished batches that name a model; None stands for whatever model there is.

    `rows` have no result yet, and `in_flight` of them are out at an engine. `deadline` is in seconds of Unix time.
    """

    model: str | None
    rows: int
    in_flight: int
    deadline: float

    @property
    def waiting(self) -> int:
        """Rows that no engine has taken."""
        return max(0, self.rows - self.in_flight)
