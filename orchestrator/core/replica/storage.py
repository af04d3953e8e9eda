"""Storage of a replica: a folder that several machines mount, or a bucket.

An object is created once and never changed. Both kinds of storage refuse to create an object that exists. Processes
need only this to agree on the active process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from orchestrator.core import storages
from orchestrator.core.addresses import check_address, is_address
from orchestrator.core.atomic import write_once
from orchestrator.core.errors import StorageError, UsageError

OPTION = "--replica"
BUCKETS = ("s3", "s3a")
ANSWER_SECONDS = {"connect_timeout": 3, "read_timeout": 8, "retries": {"max_attempts": 2}}
"""botocore options. Its default timeout of a minute is longer than a generation lasts."""


class Missing(Exception):
    """The object does not exist."""


class DamagedReplica(StorageError):
    """An object of the replica is missing or invalid; trying again does not help."""

    kind = "damaged_replica"


class Storage(Protocol):
    """Objects by name, such as `heads/000000000001`. Every call may raise StorageError."""

    url: str

    def create(self, name: str, data: bytes) -> bytes:
        """Create an object unless it exists; return its content, which is `data` if this call created it.

        Raises Missing if an existing object disappears during the call.
        """

    def put(self, name: str, data: bytes) -> None:
        """Create an object with a name that nothing else uses."""

    def get(self, name: str) -> bytes:
        """Return an object's bytes. Raises Missing."""

    def names(self, folder: str) -> list[str]:
        """Return the names of a folder's objects, without the folder; empty for a missing folder."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects. Objects that do not exist are ignored."""


def open_storage(url: str) -> Storage:
    """Open the storage at `url`. Raises UsageError if it cannot hold a replica, StorageError if it is unavailable."""
    if not is_address(url):
        path = Path(url.removeprefix("file://"))
        if not path.is_absolute():
            raise UsageError(f"{OPTION} {url}: the folder's path must begin with /")
        return FolderStorage(path)
    check_address(url, OPTION)
    if url.partition("://")[0] not in BUCKETS:
        raise UsageError(
            f"{OPTION} {url}: a replica lies in an S3 bucket or in a folder",
            hint="s3://BUCKET/FOLDER or file:///FOLDER, on a disk that both machines mount",
        )
    bucket = BucketStorage(url.rstrip("/"))
    bucket.require_conditions()
    return bucket


class FolderStorage:
    """Objects in a folder. `link(2)` creates names, so only one process on any machine can create a given name."""

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root}"
        self._root = root

    def create(self, name: str, data: bytes) -> bytes:
        with self._storage_errors():
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if write_once(path, data):
                return data
        return self.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.create(name, data)

    def get(self, name: str) -> bytes:
        with self._storage_errors():
            try:
                return (self._root / name).read_bytes()
            except FileNotFoundError:
                raise Missing(name) from None

    def names(self, folder: str) -> list[str]:
        with self._storage_errors(), suppress(FileNotFoundError):
            return [path.name for path in (self._root / folder).iterdir()]
        return []

    def remove(self, names: Iterable[str]) -> None:
        with self._storage_errors():
            for name in names:
                (self._root / name).unlink(missing_ok=True)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _away(self.url, error) from error


class BucketStorage:
    """Objects under a prefix in an S3 bucket."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._storage_errors():
            self._fs, self._root = storages.opened(
                url, use_listings_cache=False, skip_instance_cache=True, config_kwargs=ANSWER_SECONDS
            )

    def require_conditions(self) -> None:
        """Raise UsageError if creating an object that exists would overwrite it."""
        name = f"probes/{os.urandom(8).hex()}"
        self.create(name, b"first")
        second = self.create(name, b"second")
        self.remove([name])
        if second != b"first":
            raise UsageError(
                f"{OPTION} {self.url}: this storage overwrites an existing object although told not to",
                hint="it must keep to `If-None-Match: *`, as AWS, MinIO, R2 and Ceph do",
            )

    def create(self, name: str, data: bytes) -> bytes:
        with self._storage_errors():
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except Exception:
                # An answer may have been lost: only the object itself shows who created it.
                try:
                    return bytes(self._fs.cat_file(self._path(name)))
                except FileNotFoundError:
                    pass
                raise
            return data

    def put(self, name: str, data: bytes) -> None:
        with self._storage_errors():
            self._fs.pipe_file(self._path(name), data)

    def get(self, name: str) -> bytes:
        with self._storage_errors():
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                raise Missing(name) from None

    def names(self, folder: str) -> list[str]:
        with self._storage_errors():
            try:
                found: list[Any] = self._fs.ls(self._path(folder), detail=False, refresh=True)
            except FileNotFoundError:
                return []
            return [str(path).rpartition("/")[2] for path in found]

    def remove(self, names: Iterable[str]) -> None:
        with self._storage_errors():
            for name in names:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        try:
            yield
        except Missing:
            raise
        except Exception as error:  # the storage's library has its own errors
            raise _away(self.url, error) from error


def _away(url: str, error: Exception) -> StorageError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StorageError(f"the replica {url} cannot be used: {why}")
