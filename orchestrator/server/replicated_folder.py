"""What of a server's folder is on its replica: its database, uploads, and results as far as they are durable."""

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
    """The folder of a server that runs."""

    def __init__(
        self,
        root: Path,
        database: ServerDatabase,
        recorded: Callable[[], Mapping[str, int]],
        growing: Callable[[], Mapping[str, int | None]],
    ) -> None:
        """`recorded` gives the path under `root` and the size of every file that is recorded; `growing` how much of
        each result file of a running batch is durable, None where that is not known yet.
        """
        self.root = root
        self._db = database
        self._recorded = recorded
        self._growing = growing
        self._files: Mapping[str, int] = {}
        self._is_checked: set[str] = set()
        """Result files whose bytes were compared with what was sent of them before this start."""

    def version(self) -> Hashable:
        """Changes with the database."""
        return self._db.version()

    async def cut(self, *, is_new: bool) -> Cut:
        """The lengths of results are looked at behind the database: what it says of a batch is not ahead of them."""
        images = {FILE_NAME: self._db.image()} if is_new else None
        if is_new:
            self._files = self._recorded()
        growing = self._growing()
        # What a damaged disk lost of a result file is taken out when its server starts.
        unsure = {path for path, size in growing.items() if size is not None} - self._is_checked
        return Cut(images, {**self._files, **growing}, unsure, self.root)

    def sent(self, cut: Cut) -> None:
        """Its files need not be compared again."""
        self._is_checked |= set(cut.unsure)
