"""A server's folder, made as the replica has it: most of it while it stands by, the rest when it takes over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event, Thread

from orchestrator.core.atomic import durable
from orchestrator.core.errors import StorageError
from orchestrator.server.database import FILE_NAME
from orchestrator.server.replica.manifest import FOLDERS, Manifest, ReplicaPiece, digest, read_manifest, size_of
from orchestrator.server.replica.storage import Missing, Storage

AT_ONCE = 4
STEP_SECONDS = 1.0
AHEAD_SECONDS = 10.0
"""How often what is new is fetched while another server is active."""

Files = Mapping[str, Sequence[ReplicaPiece]]


class CopyStopped(Exception):
    """What `step` raises to end a copy before its time."""


class FolderCopy:
    """A folder that becomes what a replica holds; bytes that are there are not fetched. One thread at a time."""

    def __init__(self, storage: Storage, root: Path) -> None:
        self._storage = storage
        self._root = root
        self._held: set[tuple[str, int, str]] = set()
        """Path, start and digest of what is known to lie in the folder."""

    def clear_state(self) -> None:
        """Remove the database: without it the folder has no state, whatever files it has."""
        for suffix in ("", "-wal", "-shm"):
            (self._root / f"{FILE_NAME}{suffix}").unlink(missing_ok=True)

    def fetch(self, files: Files, step: Callable[[], None]) -> None:
        """Make the folder hold these files and no others. `step` is called about once a second, and may raise.

        Raises StorageError or OSError.
        """
        _remove_others(self._root, files)
        with ThreadPoolExecutor(AT_ONCE, "orch-restore") as pool:
            tasks = [
                pool.submit(self._fetch, path, start, piece)
                for path, pieces in files.items()
                for start, piece in self._missing(path, pieces)
            ]
            try:
                _finish(tasks, step)
            finally:
                for task in tasks:
                    task.cancel()

    def finish(self, manifest: Manifest, step: Callable[[], None]) -> None:
        """Make the folder hold all that the manifest says, durable; the database comes last. Raises as `fetch`."""
        self.clear_state()
        self.fetch(manifest.files, step)
        for path in manifest.files:
            with (self._root / path).open("rb") as file:
                os.fsync(file.fileno())
            step()
        if manifest.database:
            with durable(self._root / FILE_NAME) as target:
                for piece in manifest.database:
                    target.write(_content(self._storage, piece))
                    step()
            (self._root / FILE_NAME).chmod(0o600)

    def _missing(self, path: str, pieces: Sequence[ReplicaPiece]) -> list[tuple[int, ReplicaPiece]]:
        """Give a file its size; the pieces that it may not hold, each with its start."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, size_of(pieces))
        finally:
            os.close(handle)
        starts = [size_of(pieces[:number]) for number in range(len(pieces))]
        placed = zip(starts, pieces, strict=True)
        return [(start, piece) for start, piece in placed if (path, start, piece.digest) not in self._held]

    def _fetch(self, path: str, start: int, piece: ReplicaPiece) -> None:
        with (self._root / path).open("r+b") as file:
            file.seek(start)
            if digest(file.read(piece.size)) != piece.digest:
                data = _content(self._storage, piece)
                file.seek(start)
                file.write(data)
        self._held.add((path, start, piece.digest))


class Ahead:
    """Fetches files while another server is active, so that little is left to fetch at a take-over."""

    def __init__(self, copy: FolderCopy, storage: Storage) -> None:
        self._copy = copy
        self._storage = storage
        self._manifest = ""
        self._is_over = Event()
        self._thread = Thread(target=self._run, name="orch-ahead", daemon=True)

    def look(self, manifest: str) -> None:
        """The manifest that holds now."""
        self._manifest = manifest
        if not self._thread.is_alive() and not self._is_over.is_set():
            self._copy.clear_state()
            self._thread.start()

    def stop(self) -> None:
        """Return when nothing more is fetched."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        held = None
        while not self._is_over.is_set():
            wanted = self._manifest
            try:
                if wanted != held:
                    self._copy.fetch(read_manifest(self._storage, wanted).files, self._step)
                    held = wanted
            except CopyStopped:
                return
            except (StorageError, OSError):
                pass  # what is away now, or was removed since, is fetched later
            self._is_over.wait(AHEAD_SECONDS)

    def _step(self) -> None:
        if self._is_over.is_set():
            raise CopyStopped


def _finish(tasks: Sequence[Future[None]], step: Callable[[], None]) -> None:
    open_tasks = set(tasks)
    while open_tasks:
        done, open_tasks = wait(open_tasks, STEP_SECONDS, FIRST_EXCEPTION)
        for task in done:
            task.result()
        step()


def _remove_others(root: Path, files: Files) -> None:
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(root)) not in files:
                path.unlink(missing_ok=True)
    for path in (root / "batches").glob("*"):
        if not any(path.iterdir()):
            shutil.rmtree(path)


def _content(storage: Storage, piece: ReplicaPiece) -> bytes:
    try:
        data = storage.get(piece.name)
    except Missing:
        data = b""
    if digest(data) != piece.digest:
        raise StorageError(f"the object {piece.name} of the replica {storage.url} is not what was written there")
    return data
