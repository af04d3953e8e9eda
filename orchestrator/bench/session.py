"""The points of a bench and their order. A point in the notebook is not measured again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.bench.halving import Contest, Winner, contest_of
from orchestrator.bench.point import BenchPoint, PointEnd, PointTerms
from orchestrator.bench.report import Measured, Tuned, TunePoint
from orchestrator.bench.rig import Rig
from orchestrator.bench.rows import Mode
from orchestrator.bench.sweep import Knee, Measure, NoKnee, SweepPoint, next_step
from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import BackendError, StorageError
from orchestrator.core.json_decoders import json_decoder


class BenchNote(Struct, frozen=True):
    """A named measurement, such as `sweep/64` or `mode/static`. `told` holds its figures in JSON form."""

    name: str
    told: dict[str, Any]


class Notebook:
    """A file of notes by name, in order of creation. Raises StorageError if the file is unusable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._notes, whole = _read(path)
            if path.exists() and path.stat().st_size > whole:
                os.truncate(path, whole)  # remove an incomplete line
        except OSError as error:
            raise StorageError(f"{path} cannot be used: {error.strerror}") from error

    def __contains__(self, name: str) -> bool:
        return name in self._notes

    def get(self, name: str) -> dict[str, Any] | None:
        return self._notes.get(name)

    def under(self, folder: str) -> list[BenchNote]:
        """Return the notes whose names begin with `folder/`."""
        return [BenchNote(name, told) for name, told in self._notes.items() if name.startswith(f"{folder}/")]

    def add(self, name: str, told: dict[str, Any]) -> None:
        """Add a note. It is on disk when this returns."""
        line = msgspec.json.encode({"name": name, "told": told}) + b"\n"
        try:
            with self._path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written: {error.strerror}") from error
        self._notes[name] = told

    def clear(self) -> None:
        with durable(self._path):
            pass
        self._notes = {}


def _read(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    found: dict[str, dict[str, Any]] = {}
    end = 0
    if not path.exists():
        return found, end
    with path.open("rb") as file:
        for raw in file:
            if not raw.endswith(b"\n"):
                break
            try:
                line = json_decoder(BenchNote).decode(raw)
            except JSON_ERRORS:
                break
            found[line.name] = line.told
            end += len(raw)
    return found, end


SWEEP, MODE = "sweep", "mode"
SETTLED = "knee/settled"
PREFILL, FILE_ORDER = "prefill/one-token", "order/file"
SWEEP_POINTS = 14
"""Approximate number of points in a sweep: doublings, then halvings around the knee."""
OVERHEAD = 1.6
"""Real duration of a point as a multiple of its measuring time.

The first flight and the drain are not measured.
"""
LEAST_SECONDS, MOST_SECONDS = 1.0, 60.0
WINDOW = 0.5
"""Window of dynamic batching, as a share of the median latency."""
LEAST_WINDOW = 0.02


class BenchProgress(Struct, frozen=True):
    """A finished point, or a starting point if `result` is None. About `left` points remain to be measured."""

    name: str
    result: BenchPoint | None
    left: int
    eta_seconds: float | None


Tell = Callable[[BenchProgress], None]


@dataclass(slots=True)
class Session:
    """Measures a bench's points with a rig, for about `minutes`. `most` is the maximum concurrency."""

    rig: Rig
    notebook: Notebook
    minutes: float
    modes: Sequence[Mode]
    most: int
    tell: Tell
    clock: Callable[[], float] = time.monotonic
    _done: int = 0
    _spent: float = 0.0
    _is_warm: bool = False
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    async def run(self) -> Measured:
        """Measure all requested points. Raises OrchError; the notebook keeps the points measured so far."""
        knee = await self._sweep()
        if isinstance(knee, NoKnee):
            return Measured(self._sweep_results(), knee, None, (), 0.0, None, self.rig.order)
        at_knee = next(one for one in self._sweep_results() if one.concurrency == knee.concurrency)
        prefill = await self._one(PREFILL, knee.concurrency, one_token=True)
        window = max(LEAST_WINDOW, WINDOW * at_knee.p50)
        modes = []
        for mode in self.modes:
            if mode is Mode.CONTINUOUS:
                modes.append(at_knee)
            else:
                modes.append(await self._one(f"{MODE}/{mode.value}", knee.concurrency, mode=mode, window=window))
        file_order = await self._one(FILE_ORDER, knee.concurrency, in_file_order=True) if self.rig.reorders else None
        return Measured(self._sweep_results(), knee, prefill, tuple(modes), window, file_order, self.rig.order)

    async def _sweep(self) -> Knee | NoKnee:
        while True:
            points = [
                SweepPoint(
                    one.concurrency, one.rows_per_second, 1.0 if one.end is PointEnd.FELL_OVER else one.error_share
                )
                for one in self._sweep_points()
            ]
            # A settled sweep stays settled, because later points were measured at its knee.
            is_over = SETTLED in self.notebook or self.clock() - self._began > 60 * self.minutes
            step = next_step(points, self.most, settle=is_over)
            if not isinstance(step, Measure):
                if SETTLED not in self.notebook:
                    self.notebook.add(SETTLED, {"points": len(points)})
                return step
            name = f"{SWEEP}/{step.concurrency}"
            await self._one(f"{name}/again" if name in self.notebook else name, step.concurrency)

    def _sweep_points(self) -> list[BenchPoint]:
        """Return the points in measuring order. A concurrency may appear twice; the later point counts."""
        return [BenchPoint.of_json(note.told) for note in self.notebook.under(SWEEP)]

    def _sweep_results(self) -> tuple[BenchPoint, ...]:
        latest = {one.concurrency: one for one in self._sweep_points()}
        return tuple(latest[concurrency] for concurrency in sorted(latest))

    async def _one(
        self, name: str, concurrency: int, *, mode: Mode = Mode.CONTINUOUS, window: float = 0.0,
        in_file_order: bool = False, one_token: bool = False,
    ) -> BenchPoint:  # fmt: skip
        if (told := self.notebook.get(name)) is not None:
            return BenchPoint.of_json(told)
        self.tell(BenchProgress(name, None, self._left(), self._eta()))
        if not self._is_warm:
            await self.rig.warm_up()
            self._is_warm = True
        began = self.clock()
        terms = PointTerms(concurrency, self.point_seconds, mode, window)
        result = await self.rig.measure(terms, in_file_order=in_file_order, one_token=one_token)
        self.notebook.add(name, result.to_json())
        self._done += 1
        self._spent += self.clock() - began
        self.tell(BenchProgress(name, result, self._left(), self._eta()))
        return result

    @property
    def point_seconds(self) -> float:
        points = SWEEP_POINTS + 2 + len(self.modes)
        return min(MOST_SECONDS, max(LEAST_SECONDS, 60 * self.minutes / points / OVERHEAD))

    def _left(self) -> int:
        known = len(self.notebook.under(SWEEP))
        others = [PREFILL, *(f"{MODE}/{mode.value}" for mode in self.modes if mode is not Mode.CONTINUOUS)]
        return max(1, SWEEP_POINTS - known) + sum(name not in self.notebook for name in others)

    def _eta(self) -> float | None:
        return self._left() * self._spent / self._done if self._done else None


TUNE = "tune"
Started = Callable[[tuple[str, ...]], AbstractAsyncContextManager[Rig]]
"""A function that starts an engine with extra options and yields its rig.

It raises BackendError if the engine does not start.
"""


async def tune(
    candidates: list[tuple[str, ...]], concurrency: int, notebook: Notebook, started: Started,
    tell: Callable[[Contest, TunePoint | None], None], first_seconds: float,
) -> Tuned:  # fmt: skip
    """Try settings until there is a winner. Settings in the notebook are not tried again.

    `concurrency` is high enough for the engine's own limits to decide how many rows run at once. The first run of
    each setting takes `first_seconds`.
    """
    while True:
        points = tuple(TunePoint.of_json(note.told) for note in notebook.under(TUNE))
        step = contest_of(candidates, [point.run for point in points], first_seconds)
        if isinstance(step, Winner):
            return Tuned(points, step)
        tell(step, None)
        point = await _tried(step, concurrency, started)
        notebook.add(f"{TUNE}/{step.round}/{' '.join(step.options)}", point.to_json())
        tell(step, point)


async def _tried(step: Contest, concurrency: int, started: Started) -> TunePoint:
    try:
        async with started(step.options) as rig:
            await rig.warm_up()
            result = await rig.measure(PointTerms(concurrency, step.seconds))
    except BackendError as error:
        return TunePoint(step.options, step.round, None, error.message)
    if result.end is PointEnd.FELL_OVER:
        return TunePoint(step.options, step.round, None, result.problem or "it fell over")
    return TunePoint(step.options, step.round, result, None)
