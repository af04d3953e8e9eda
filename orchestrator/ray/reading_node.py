"""The node's side of a Ray task: one call in a worker process, with the same limits as local calls."""

from __future__ import annotations

from functools import cache

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.process import Tripped, WorkerLimits
from orchestrator.core.bounded.single import Single

_worker = cache(Single)
"""Returns the worker process for given limits, and keeps the process for later tasks."""


def answer(request: bytes, limits: WorkerLimits) -> tuple[str, str, list[bytes]]:
    """Run the call that `messages.dumps` packed. Return the trip ("" if none), its detail and the packed values.

    Raises StorageError if no process can be started.
    """
    function, arguments = messages.loads(request)
    try:
        return "", "", [messages.dumps(value) for value in _worker(limits).call(function, *arguments)]
    except Tripped as tripped:
        return tripped.trip.value, tripped.detail, []
