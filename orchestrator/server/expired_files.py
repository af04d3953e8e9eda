"""Removes expired files and uploads, and unused files of ended batches."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from orchestrator.core.clock import now as clock_now
from orchestrator.core.errors import StorageError
from orchestrator.server.dispatch.send_log import FILE_NAME
from orchestrator.server.records import Records
from orchestrator.server.uploads import Uploads, remove

log = logging.getLogger(__name__)

AT_ONCE = 100
BATCH_FILES = ("output.jsonl", "error.jsonl", FILE_NAME)
"""Files that a batch writes. After its end, only files that the API offers are kept."""


class Upkeep:
    """Sweeps at startup and every `period` seconds. `unfinished` returns the ids of unfinished batches."""

    def __init__(
        self,
        root: Path,
        records: Records,
        uploads: Uploads,
        *,
        unfinished: Callable[[], Collection[str]],
        is_in_use: Callable[[str], bool],
        period: float,
    ) -> None:
        self._batches = root / "batches"
        self._root = root
        self._records = records
        self._uploads = uploads
        self._unfinished = unfinished
        self._is_in_use = is_in_use
        self._period = period
        self._folders = {path.name for path in self._batches.iterdir()} if self._batches.is_dir() else set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sweep. Call this once every unfinished batch is known."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def note_ended(self, batch_id: str) -> None:
        """Record that a batch has ended. The next sweep checks its folder."""
        self._folders.add(batch_id)

    def note_removed(self, path: str) -> None:
        """Record that a file under the server's folder was deleted. If it belonged to a batch, the next sweep checks
        the batch's folder.
        """
        folder, _, rest = path.partition("/")
        if folder == self._batches.name:
            self.note_ended(rest.partition("/")[0])

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep(int(clock_now().timestamp()))
            except (StorageError, OSError) as error:
                log.warning("what has expired could not be removed: %s", error)
            except Exception:
                log.exception("what has expired could not be removed")
            await asyncio.sleep(self._period)

    async def sweep(self, now: int) -> None:
        """Remove files and uploads that have expired at time `now`, in seconds since 1970. Raises StorageError or
        OSError.
        """
        await self._expire_files(now)
        await self._uploads.expire(now)
        await self._tidy()

    async def _expire_files(self, now: int) -> None:
        kept: set[str] = set()
        while True:
            # Files in use stay in the table, so the next page must reach past them.
            due = self._records.expired_files(now, AT_ONCE + len(kept))
            gone: list[Path] = []
            for record in due:
                if self._is_in_use(record.file.id):
                    kept.add(record.file.id)
                    continue
                self._records.delete_file(record.file.id)
                self.note_removed(record.path)
                gone.append(self._root / record.path)
                await asyncio.sleep(0)
            await asyncio.to_thread(remove, gone)
            if not gone:
                return
            log.info("removed %d expired files", len(gone))

    async def _tidy(self) -> None:
        """Clean the folders of batches that ended since the last sweep. The first sweep also cleans folders that
        existed at startup.
        """
        unfinished = self._unfinished()
        names = [name for name in self._folders if name not in unfinished]
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            kept = {name: self._files_of(name) for name in some}
            self._folders.difference_update(some)
            await asyncio.to_thread(self._clear, kept)

    def _files_of(self, batch_id: str) -> set[str]:
        """Return the names of a batch's files that the API still offers."""
        found = self._records.batch(batch_id)
        ids = () if found is None else (found.batch.output_file_id, found.batch.error_file_id)
        records = [self._records.file(file_id) for file_id in ids if file_id is not None]
        return {Path(record.path).name for record in records if record is not None}

    def _clear(self, kept: dict[str, set[str]]) -> None:
        for name, files in kept.items():
            folder = self._batches / name
            if not files:
                shutil.rmtree(folder, ignore_errors=True)
            remove([folder / file for file in BATCH_FILES if file not in files])
