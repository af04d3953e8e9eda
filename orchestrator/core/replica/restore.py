"""Rebuilds a folder from its replica: most files while standing by, the rest at a take-over."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from threading import Event, Thread

from orchestrator.core.atomic import sync_folder
from orchestrator.core.errors import StorageError
from orchestrator.core.replica.contents import ReplicaLayout
from orchestrator.core.replica.manifest import Manifest, Pieces, ReplicaPiece, digest, read_manifest, size_of
from orchestrator.core.replica.storage import DamagedReplica, Missing, Storage

AT_ONCE = 8
STEP_SECONDS = 1.0
AHEAD_SECONDS = 10.0
"""Seconds between background fetches while another process is active."""


class CopyStopped(Exception):
    """Raised by `step` to end a copy early."""


class FolderCopy:
    """A folder that becomes a copy of a replica. Bytes that the folder already has are not fetched.

    Only one thread at a time may use a copy.
    """

    def __init__(self, storage: Storage, root: Path, layout: ReplicaLayout) -> None:
        self._storage = storage
        self._root = root
        self._layout = layout
        self._held: dict[str, dict[int, str]] = {}
        """Known pieces in the folder: digests by path and offset."""

    def clear_state(self) -> None:
        """Remove the images: a folder without images has no state, whatever other files it holds."""
        for pattern in self._layout.images:
            for suffix in ("", "-wal", "-shm"):
                for path in self._root.glob(f"{pattern}{suffix}"):
                    path.unlink(missing_ok=True)

    def read(self, manifest: str) -> Manifest:
        """Read the manifest that a head names. Raises StorageError."""
        return read_manifest(self._storage, manifest, self._layout)

    def fetch(self, manifest: Manifest, step: Callable[[], None]) -> None:
        """Make the folder's files match a manifest, and put its images beside their final paths.

        `step` is called about once a second, and may raise. Raises StorageError or OSError.
        """
        wanted = {**manifest.files, **{_temporary_path(path): pieces for path, pieces in manifest.images.items()}}
        self._remove_others(wanted)
        with ThreadPoolExecutor(AT_ONCE, "orch-restore") as pool:
            tasks = [
                pool.submit(self._fetch, path, start, piece)
                for path, pieces in wanted.items()
                for start, piece in self._missing(path, pieces)
            ]
            try:
                _finish(tasks, step)
            finally:
                for task in tasks:
                    task.cancel()

    def finish(self, manifest: Manifest, step: Callable[[], None]) -> None:
        """Complete the folder from the manifest and sync it to disk. Images get their final names last.

        Raises the same errors as `fetch`.
        """
        self.clear_state()
        self.fetch(manifest, step)
        images = [_temporary_path(path) for path in manifest.images]
        for path in (*manifest.files, *images):
            with (self._root / path).open("rb") as file:
                os.fsync(file.fileno())
            step()
        for path, beside in zip(manifest.images, images, strict=True):
            (self._root / beside).replace(self._root / path)
        for folder in {(self._root / path).parent for path in manifest.images}:
            sync_folder(folder)

    def _remove_others(self, wanted: Pieces) -> None:
        for folder in self._layout.tops(self._root):
            for path in sorted(folder.rglob("*"), reverse=True):
                if path.is_dir() and not path.is_symlink():
                    with suppress(OSError):  # a folder that is not empty stays
                        path.rmdir()
                elif path.relative_to(self._root).as_posix() not in wanted:
                    path.unlink(missing_ok=True)

    def _missing(self, path: str, pieces: Sequence[ReplicaPiece]) -> list[tuple[int, ReplicaPiece]]:
        """Set a file's size. Return the pieces that the file may lack, each with its offset."""
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        size = size_of(pieces)
        handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            before = os.fstat(handle).st_size
            os.ftruncate(handle, size)
        finally:
            os.close(handle)
        if not 0 < before <= size:  # the file is new, or shrinks and loses known pieces
            self._held.pop(path, None)
        held = self._held.setdefault(path, {})
        placed = zip(accumulate((piece.size for piece in pieces), initial=0), pieces, strict=False)
        return [(start, piece) for start, piece in placed if held.get(start) != piece.digest]

    def _fetch(self, path: str, start: int, piece: ReplicaPiece) -> None:
        with (self._root / path).open("r+b") as file:
            file.seek(start)
            if digest(file.read(piece.size)) != piece.digest:
                data = _content(self._storage, piece)
                file.seek(start)
                file.write(data)
        self._held[path][start] = piece.digest


class Ahead:
    """Fetches files while another process is active, so that a take-over has little left to fetch."""

    def __init__(self, copy: FolderCopy) -> None:
        self._copy = copy
        self._manifest = ""
        self._is_over = Event()
        self._thread = Thread(target=self._run, name="orch-ahead", daemon=True)

    def look(self, manifest: str) -> None:
        """Fetch the files of `manifest` in the background. It replaces the manifest of an earlier call."""
        self._manifest = manifest
        if not self._thread.is_alive() and not self._is_over.is_set():
            self._copy.clear_state()
            self._thread.start()

    def stop(self) -> None:
        """Stop fetching and wait for the thread."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        held = None
        while not self._is_over.is_set():
            wanted = self._manifest
            try:
                if wanted != held:
                    self._copy.fetch(self._copy.read(wanted), self._step)
                    held = wanted
            except CopyStopped:
                return
            except (StorageError, OSError):
                pass  # an object that is unavailable or already removed is fetched later, if needed
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


def _temporary_path(path: str) -> str:
    """Return the temporary path of a database image, used until the folder is complete."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.ahead" if folder else f".{name}.ahead"


def _content(storage: Storage, piece: ReplicaPiece) -> bytes:
    try:
        data = storage.get(piece.name)
    except Missing:
        data = b""
    if digest(data) != piece.digest:
        raise DamagedReplica(f"the object {piece.name} of the replica {storage.url} is not what was written there")
    return data
