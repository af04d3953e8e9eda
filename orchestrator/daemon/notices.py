"""Messages of a daemon that concern no job, and isolation of errors in the daemon's parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from orchestrator.core.errors import JobFilesError, NotReplicated, StorageError
from orchestrator.core.model import JobFault
from orchestrator.policy.alerts import AlertKind, Notice

log = logging.getLogger(__name__)


class Notices:
    """Messages kept until the monitor takes them. Each message is reported once."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._open: dict[str, Notice] = {}

    def add(self, notice: Notice) -> None:
        self._open[notice.key] = notice

    def taken(self) -> list[Notice]:
        found, self._open = [*self._open.values()], {}
        return found

    @contextmanager
    def apart(self, what: str) -> Iterator[None]:
        """Isolate a part of the daemon: its error is logged and reported, and the part runs again later.

        Raises StorageError if the error concerns the home.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, StorageError) and not isinstance(error, JobFilesError | NotReplicated):
                raise
            log.exception("%s", what)
            reason = f"{what} failed by {type(error).__name__}: {error}".partition("\n")[0]
            action = "retrying; engine.log has the details; jobs continue"
            kind = f"{what}:{type(error).__name__}:{self._now():%Y%m%d}"
            self.add(Notice(AlertKind.DAEMON, kind, f"{JobFault.INTERNAL}: {reason}", action))
