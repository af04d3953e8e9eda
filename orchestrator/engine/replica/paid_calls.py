"""A provider's Batch API behind a home's replica: what cannot be undone is asked for once the replica knows of it.

A batch is created, and a row asked, once its intent is there, so that whoever takes over does not pay for another.
A file is deleted at a provider once the results that came of it are there, and a batch is cancelled once it is known
there why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from orchestrator.backends import Backend, BatchOrder, RemoteBatch
from orchestrator.core.errors import BackendError, NotSent, StorageError
from orchestrator.policy.preflight import DirectAnswer


class _Replicated:
    """`settled` returns when all that is recorded is on the replica, and this engine is the active one."""

    def __init__(self, api: Backend, settled: Callable[[], None]) -> None:
        self._api = api
        self._settled = settled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def create(self, order: BatchOrder) -> RemoteBatch:
        """See `Backend`."""
        try:
            self._settled()
        except StorageError as error:
            raise NotSent(f"not sent: {error.message}") from error
        return self._api.create(order)

    def ask(self, endpoint: str, line: bytes) -> DirectAnswer:
        """See `Backend`."""
        try:
            self._settled()
        except StorageError as error:
            raise NotSent(f"not sent: {error.message}") from error
        return self._api.ask(endpoint, line)

    def cancel(self, batch_id: str) -> None:
        """See `Backend`."""
        self._require("cancelled")
        self._api.cancel(batch_id)

    def forget_file(self, file_id: str) -> None:
        """See `Backend`."""
        self._require("deleted")
        self._api.forget_file(file_id)

    def _require(self, what: str) -> None:
        try:
            self._settled()
        except StorageError as error:
            raise BackendError(f"not {what}: {error.message}") from error


def behind_replica(api: Backend, settled: Callable[[], None]) -> Backend:
    """A hosted Batch API as the engine of a home with a replica may use it."""
    return cast("Backend", _Replicated(api, settled))
