"""The part of a Ray task that runs on its node: one call in a worker process, under the same limits as locally."""

from __future__ import annotations

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.process import Tripped, WorkerLimits
from orchestrator.core.bounded.single import Single

_kept: dict[WorkerLimits, Single] = {}
"""Worker processes, kept for the next task."""


def answer(request: bytes, limits: WorkerLimits) -> tuple[str, str, list[bytes]]:
    """Make the call that `messages.dumps` packed; return the trip ("" if none), its detail and the packed values.

    Raises StorageError if no process can be started.
    """
    function, arguments = messages.loads(request)
    worker = _kept.setdefault(limits, Single(limits))
    try:
        return "", "", [messages.dumps(value) for value in worker.call(function, *arguments)]
    except Tripped as tripped:
        return tripped.trip.value, tripped.detail, []
