"""Our own engines: their states, GPU time and speed, and the rows that wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from statistics import median
from typing import Any

from msgspec import Struct

from orchestrator.core.model import PICO

STARTS = 9
"""Number of recent starts whose median predicts the next start."""


class EngineState(StrEnum):
    """States of an engine of a fleet."""

    COLD = "cold"  # not running
    PENDING = "pending"  # requested, but no machine has room yet
    STARTING = "starting"  # started, but not ready yet
    WARM = "warm"  # ready for rows
    DRAINING = "draining"  # gets no more rows; rows in flight may still return
    ASLEEP = "asleep"  # running, its GPU memory freed
    GIVEN_UP = "given_up"  # failed to start too often


class EngineHold(Struct, frozen=True):
    """GPUs that one run of an engine held, from `began_at` to `seen_at`.

    If `is_over`, the run ended at `seen_at`; otherwise it was last seen then. `warm_at` is when the engine was first
    ready for rows, None if it never was. `cost_per_hour` is in dollars per GPU.
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
        """Hours that the engine held the GPUs."""
        return max(0.0, (self.seen_at - self.began_at).total_seconds() / 3600)

    @property
    def cost(self) -> Decimal:
        """Cost of the GPUs while the engine held them, busy or idle, in dollars."""
        return (Decimal(repr(self.hours)) * self.gpus * self.cost_per_hour).quantize(PICO)


def start_seconds(holds: Iterable[EngineHold], backend: str) -> dict[str, float]:
    """Return the seconds that each model of a backend needs to start: the median of its latest starts."""
    found: dict[str, list[float]] = {}
    for one in sorted(holds, key=lambda one: one.began_at):
        if one.backend == backend and one.warm_at is not None:
            found.setdefault(one.model, []).append((one.warm_at - one.began_at).total_seconds())
    return {model: median(seconds[-STARTS:]) for model, seconds in found.items()}


class EngineRates(Struct, frozen=True):
    """Throughput of an engine at its best concurrency, as a bench measured it.

    `prefill` and `decode` are prompt and answer tokens a second, each as if the engine did nothing else. `decode` is
    None if the rows have no answer tokens. `options` are the settings that differ from the defaults, separated by
    spaces. An unknown `engine_version` or `gpu` is empty. An unknown `start_seconds` or `vram_bytes` is None.
    `input_tokens` and `output_tokens` are the tokens of one row of the bench; forecasts are best for similar rows.
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
        """Return the engine's rows per second for rows with this many input and output tokens."""
        answers = 0.0 if self.decode is None else output_tokens / self.decode
        return 1.0 / max(1e-9, input_tokens / self.prefill + answers)

    @property
    def output_weight(self) -> float | None:
        """Work per answer token, relative to a prompt token."""
        return None if self.decode is None else self.prefill / self.decode

    def to_json(self) -> dict[str, Any]:
        """Return the stable JSON form, as documented in docs/reference/json.md."""
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


class EngineProgress(Struct, frozen=True):
    """Tokens of the rows that an upstream has finished since it joined, and its rows in flight.

    `rows` is the number of finished rows.
    """

    url: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    in_flight: int
    rows: int = 0


class ModelDemand(Struct, frozen=True):
    """Rows of unfinished batches for one `model`; None for rows that accept any model.

    `rows` counts the rows without a result; `in_flight` of these rows are at an engine. `deadline` is the earliest
    deadline, in Unix seconds. `due` lists every deadline with its number of rows.
    """

    model: str | None
    rows: int
    in_flight: int
    deadline: float
    due: tuple[tuple[float, int], ...] = ()

    @property
    def waiting(self) -> int:
        """Number of rows that no engine has taken."""
        return max(0, self.rows - self.in_flight)
