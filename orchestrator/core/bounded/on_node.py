"""What a Ray task runs on its node: one call, in a worker process under limits as it would have been at home."""

from __future__ import annotations

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.process import Tripped, WorkerLimits
from orchestrator.core.bounded.single import Single

_kept: dict[WorkerLimits, Single] = {}
"""A task's process is used for the next task, and so is its worker."""


def answer(request: bytes, limits: WorkerLimits) -> tuple[str, str, list[bytes]]:
    """Make the call that `messages.dumps` has packed. Returns the trip (empty: none), its detail, and packed values.

    Raises StorageError where no process can be started.
    """
    function, arguments = messages.loads(request)
    worker = _kept.setdefault(limits, Single(limits))
    try:
        return "", "", [messages.dumps(value) for value in worker.call(function, *arguments)]
    except Tripped as tripped:
        return tripped.trip.value, tripped.detail, []
