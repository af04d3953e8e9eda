"""Reasons why batches wait: a problem of the server's storage, or of a single batch."""

from __future__ import annotations

import errno
import logging

from orchestrator.core.atomic import NO_ROOM
from orchestrator.core.errors import StorageError

log = logging.getLogger(__name__)

DISK = NO_ROOM | {errno.EROFS, errno.EMFILE, errno.ENFILE}
"""Errors that affect every batch, such as no space or no file descriptors. Other errors affect a single file."""


class BatchChanged(Exception):
    """Raised if a batch's input or settings changed after the batch was accepted. The message says what to
    restore.
    """


class Troubles:
    """Reasons why batches wait, by batch id."""

    def __init__(self) -> None:
        self._storage: dict[str, str] = {}
        self._own: dict[str, str] = {}

    @property
    def storage(self) -> str | None:
        return next(iter(self._storage.values()), None)

    @property
    def own(self) -> str | None:
        return next(iter(self._own.values()), None)

    def note(self, batch_id: str, error: Exception) -> None:
        """Record why a batch waits. Call this inside an `except` block, so that the log gets a traceback."""
        known = self._storage.get(batch_id) or self._own.get(batch_id)
        self.clear(batch_id)
        troubles, reason = self._own, "an internal error; see the log"
        match error:
            case StorageError():
                troubles, reason = self._storage, error.message
            case OSError():
                troubles = self._storage if error.errno in DISK else self._own
                reason = error.strerror or str(error)
            case BatchChanged():
                reason = str(error)
        troubles[batch_id] = told = f"batch {batch_id} waits: {reason}"
        if told != known:
            is_known = troubles is self._storage or isinstance(error, OSError | BatchChanged)
            log.warning("batch %s waits: %s", batch_id, reason, exc_info=None if is_known else error)

    def clear(self, batch_id: str) -> None:
        """Clear the reason why a batch waited, because it continues."""
        self._storage.pop(batch_id, None)
        self._own.pop(batch_id, None)
