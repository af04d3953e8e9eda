"""Trials of an engine's own settings: for each, an engine is started and one point measured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from orchestrator.core.errors import BackendError
from orchestrator.daemon.bench.notebook import Notebook
from orchestrator.policy.bench import Contest, Winner, contest_of
from orchestrator.reports.bench import Tuned, TunePoint
from orchestrator.server.bench.point import PointEnd, PointTerms
from orchestrator.server.bench.rig import Rig

TUNE = "tune"
Started = Callable[[tuple[str, ...]], AbstractAsyncContextManager[Rig]]
"""Starts an engine with these additional options, ready for rows. Raises BackendError if it does not start."""


async def tune(
    candidates: list[tuple[str, ...]], concurrency: int, notebook: Notebook, started: Started,
    tell: Callable[[Contest, TunePoint | None], None], first_seconds: float,
) -> Tuned:  # fmt: skip
    """Try settings until there is a winner; settings in the notebook are not tried again.

    `concurrency` is so high that the engine's own limits decide how many rows run at once. The first run of each
    takes `first_seconds`.
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
