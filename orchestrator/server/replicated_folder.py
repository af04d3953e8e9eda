"""The replicated parts of a server's folder: database, uploads, and the durable part of results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

from orchestrator.core.replica.contents import Cut, ReplicaLayout
from orchestrator.server.database import FILE_NAME, ServerDatabase

LAYOUT = ReplicaLayout(
    folders=("files", "uploads", "batches"),
    images=(FILE_NAME,),
    has_state=lambda root: (root / FILE_NAME).exists(),
    holds="files, batches or keys",
    elsewhere="name an empty folder with --dir",
)


class ServerContents:
    """Contents of a running server's folder that a replica receives."""

    def __init__(
        self,
        root: Path,
        database: ServerDatabase,
        recorded: Callable[[], Mapping[str, int]],
        growing: Callable[[], Mapping[str, int | None]],
    ) -> None:
        """`recorded` returns the bytes of every recorded file, by path under `root`. `growing` returns the durable
        bytes of each running batch's result files, None while unknown.
        """
        self.root = root
        self._db = database
        self._recorded = recorded
        self._growing = growing
        self._files: Mapping[str, int] = {}
        self._is_checked: set[str] = set()
        """Result files already compared with the bytes sent before this start."""

    def version(self) -> Hashable:
        """Return a value that changes with the database."""
        return self._db.version()

    async def cut(self, *, is_new: bool) -> Cut:
        """Return the files to replicate. Results are measured after the database is read, so no recorded result is
        missing.
        """
        images = {FILE_NAME: self._db.image()} if is_new else None
        if is_new:
            self._files = self._recorded()
        growing = self._growing()
        # A server's start removes lines that a damaged disk broke, so a result file may differ from the bytes sent.
        unsure = {path for path, size in growing.items() if size is not None} - self._is_checked
        return Cut(images, {**self._files, **growing}, unsure, self.root)

    def sent(self, cut: Cut) -> None:
        """Record that this cut was sent, so its files need no further comparison."""
        self._is_checked |= set(cut.unsure)
