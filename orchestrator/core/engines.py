"""Engines of our own: the states they are in, and what the rows that wait ask of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from statistics import median
from typing import Any

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
class EngineRates:
    """What one engine of a home's model does, as a bench has measured it at its best concurrency.

    `prefill` and `decode` are tokens a second of prompts and of answers, each as if it did nothing else; `decode` is
    None where rows have no answers of tokens. `options` are its own beside the defaults, separated by blanks;
    `engine_version` and `gpu` are empty where they are not known, `start_seconds` and `vram_bytes` None.
    `input_tokens` and `output_tokens` are those of a row of that bench: rows like these are forecast best.
    """

    home: str
    backend: str
    model: str
    options: str
    engine_version: str
    gpu: str
    prefill: float
    decode: float | None
    input_tokens: float
    output_tokens: float
    best_limit: int
    start_seconds: float | None
    vram_bytes: int | None
    measured_at: datetime

    def rows_per_second(self, input_tokens: float, output_tokens: float) -> float:
        """What it does of rows with so many tokens each."""
        answers = 0.0 if self.decode is None else output_tokens / self.decode
        return 1.0 / max(1e-9, input_tokens / self.prefill + answers)

    @property
    def output_weight(self) -> float | None:
        """How much more work a token of an answer is than one of a prompt."""
        return None if self.decode is None else self.prefill / self.decode

    def to_json(self) -> dict[str, Any]:
        """The stable form; documented in docs/reference/json.md."""
        decode, start = self.decode, self.start_seconds
        return {
            "backend": self.backend,
            "model": self.model,
            "options": self.options,
            "engine_version": self.engine_version,
            "gpu": self.gpu,
            "prefill_tokens_per_second": round(self.prefill, 2),
            "decode_tokens_per_second": None if decode is None else round(decode, 2),
            "input_tokens": round(self.input_tokens, 1),
            "output_tokens": round(self.output_tokens, 1),
            "best_limit": self.best_limit,
            "start_seconds": None if start is None else round(start, 1),
            "vram_bytes": self.vram_bytes,
            "measured_at": self.measured_at.isoformat(timespec="seconds"),
        }


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
