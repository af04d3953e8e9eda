"""A server's folder, made as the replica has it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from orchestrator.core.atomic import durable
from orchestrator.core.errors import StorageError
from orchestrator.server.database import FILE_NAME
from orchestrator.server.replica.manifest import FOLDERS, Manifest, ReplicaPiece, digest
from orchestrator.server.replica.storage import Missing, Storage

AT_ONCE = 4
STEP_SECONDS = 1.0


def restore(storage: Storage, manifest: Manifest, root: Path, renew: Callable[[], None]) -> None:
    """Make `root` hold what the manifest says and nothing else of a server; bytes that are there are not fetched.

    The database comes last: without it the folder has no state. `renew` is called about once a second meanwhile.
    Raises StorageError or OSError, and what `renew` raises.
    """
    for suffix in ("", "-wal", "-shm"):
        (root / f"{FILE_NAME}{suffix}").unlink(missing_ok=True)
    _remove_others(root, manifest.files)
    with ThreadPoolExecutor(AT_ONCE, "orch-restore") as pool:
        tasks = [pool.submit(_fetch, storage, root / path, pieces) for path, pieces in manifest.files.items()]
        try:
            _finish(tasks, renew)
        finally:
            for task in tasks:
                task.cancel()
    if manifest.database:
        with durable(root / FILE_NAME) as file:
            for piece in manifest.database:
                file.write(_content(storage, piece))
                renew()
        (root / FILE_NAME).chmod(0o600)


def _finish(tasks: Sequence[Future[None]], renew: Callable[[], None]) -> None:
    open_tasks = set(tasks)
    while open_tasks:
        done, open_tasks = wait(open_tasks, STEP_SECONDS, FIRST_EXCEPTION)
        for task in done:
            task.result()
        renew()


def _remove_others(root: Path, files: Mapping[str, object]) -> None:
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.is_file() and str(path.relative_to(root)) not in files:
                path.unlink(missing_ok=True)
    for path in (root / "batches").glob("*"):
        if not any(path.iterdir()):
            shutil.rmtree(path)


def _fetch(storage: Storage, path: Path, pieces: Sequence[ReplicaPiece]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
        for piece in pieces:
            start = file.tell()
            if digest(file.read(piece.size)) != piece.digest:
                file.seek(start)
                file.write(_content(storage, piece))
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _content(storage: Storage, piece: ReplicaPiece) -> bytes:
    try:
        data = storage.get(piece.name)
    except Missing:
        data = b""
    if digest(data) != piece.digest:
        raise StorageError(f"the object {piece.name} of the replica {storage.url} is not what was written there")
    return data
