"""What keeps batches from going on, told apart by whose matter it is: the server's storage, or one batch alone."""

from __future__ import annotations

import errno
import logging

from orchestrator.core.errors import StorageError

log = logging.getLogger(__name__)

DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EMFILE, errno.ENFILE})
"""Errors that hit every batch: no room, no descriptors. Others are of the one file that they come from."""


class NotAsItWas(Exception):
    """What a running batch needs is not as it was when it was accepted; the text says what. It may be put back."""


class Troubles:
    """Why batches wait, by their ids, for people."""

    def __init__(self) -> None:
        self._storage: dict[str, str] = {}
        self._own: dict[str, str] = {}

    @property
    def storage(self) -> str | None:
        """Why nothing can be written, or None."""
        return next(iter(self._storage.values()), None)

    @property
    def own(self) -> str | None:
        """Why a batch does not go on for a reason that is its own, or None."""
        return next(iter(self._own.values()), None)

    def note(self, batch_id: str, error: Exception) -> None:
        """A batch waits because of this error; call it while the error is handled."""
        known = self._storage.get(batch_id) or self._own.get(batch_id)
        self.clear(batch_id)
        troubles, reason = self._own, "an internal error; see the log"
        match error:
            case StorageError():
                troubles, reason = self._storage, error.message
            case OSError():
                troubles = self._storage if error.errno in DISK else self._own
                reason = error.strerror or str(error)
            case NotAsItWas():
                reason = str(error)
        troubles[batch_id] = told = f"batch {batch_id} waits: {reason}"
        if told != known:
            is_known = troubles is self._storage or isinstance(error, OSError | NotAsItWas)
            log.warning("batch %s waits: %s", batch_id, reason, exc_info=None if is_known else error)

    def clear(self, batch_id: str) -> None:
        """A batch goes on."""
        self._storage.pop(batch_id, None)
        self._own.pop(batch_id, None)
