"""SFTP for fsspec. It connects only to hosts that `ssh` knows, has timeouts, and writes files whole or not at all.

Import this module only if paramiko is installed.
"""

from __future__ import annotations

import stat
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any
from uuid import uuid4

import paramiko
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.implementations.sftp import SFTPFileSystem

from orchestrator.core.errors import StorageRefused

CONNECT_SECONDS = 30
SILENT_SECONDS = 60
"""Seconds of silence after which a server counts as gone."""
KNOWN = "/etc/ssh/ssh_known_hosts"
AHEAD = 64
"""Number of pieces of a file to request before the first piece arrives."""


class _RefuseUnknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # paramiko has no types
    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise StorageRefused(
            f"the host key of {hostname} is not in ~/.ssh/known_hosts", "connect to it once with `ssh` or `sftp`"
        )


class Sftp(SFTPFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The file system of an SFTP server, for use by one thread. After a lost connection, the next call reconnects."""

    cachable = False

    def _connect(self) -> None:
        client = paramiko.SSHClient()
        # Close the client with this object: otherwise paramiko's threads keep the connection forever.
        weakref.finalize(self, client.close).atexit = False
        client.load_system_host_keys()
        with suppress(OSError):
            client.load_system_host_keys(KNOWN)
        client.set_missing_host_key_policy(_RefuseUnknown())
        seconds = dict.fromkeys(("timeout", "banner_timeout", "auth_timeout", "channel_timeout"), CONNECT_SECONDS)
        try:
            client.connect(self.host, **{**seconds, **self.ssh_kwargs})
        except paramiko.BadHostKeyException as error:
            told = f"{self.host} does not have the host key in ~/.ssh/known_hosts: it may be another machine"
            raise StorageRefused(told, "ask who runs it before you correct known_hosts") from error
        except paramiko.SSHException as error:
            transport = client.get_transport()
            if transport is None or not transport.is_active():
                raise
            told = f"{self.host} does not let this user in: {error}"
            raise StorageRefused(told, "an SSH agent or ~/.ssh has the key; the address names the user") from error
        self.client = client
        self._session = client.open_sftp()
        self._session.get_channel().settimeout(SILENT_SECONDS)

    @property
    def ftp(self) -> Any:
        """The SFTP session; reconnects if the connection was lost."""
        transport = self.client.get_transport()
        if transport is None or not transport.is_active():
            self._connect()
        return self._session

    @staticmethod
    def _decode_stat(found: Any, parent_path: str | None = None) -> dict[str, Any]:
        told: dict[str, Any] = SFTPFileSystem._decode_stat(found, parent_path)
        if told["type"] == "file" and not stat.S_ISREG(found.st_mode):
            told["type"] = "other"  # a pipe: reading it would block forever
        return told

    def get_file(self, rpath: str, lpath: str, callback: Any = DEFAULT_CALLBACK, **options: Any) -> None:
        """Fetch a file; `callback` receives the progress, and may raise to end the transfer."""
        path = self._strip_protocol(rpath)
        self.ftp.get(path, lpath, _steps(callback), max_concurrent_prefetch_requests=AHEAD)

    def put_file(self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, **options: Any) -> None:
        """Upload a file under a temporary name, then rename it, so that readers never find a partial file."""
        path = self._strip_protocol(rpath)
        folder, _, name = path.rpartition("/")
        self.makedirs(folder, exist_ok=True)
        beside = f"{folder}/.{name}.{uuid4().hex[:8]}.part"
        try:
            self.ftp.put(lpath, beside, _steps(callback))
            self._replace(beside, path)
        except BaseException:
            with suppress(Exception):
                self.ftp.remove(beside)
            raise

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write bytes to a file, and create missing folders."""
        self.makedirs(self._parent(self._strip_protocol(path)), exist_ok=True)
        super().pipe_file(path, value, mode=mode, **options)

    def ukey(self, path: str) -> str:
        """Return an id of the content. Unlike fsspec's own id, it ignores the time of the last read."""
        told = {**self.info(path), "time": None}
        return sha256(str(told).encode()).hexdigest()

    def _replace(self, old: str, new: str) -> None:
        try:
            self.ftp.posix_rename(old, new)
        except OSError as error:
            if error.errno is not None:
                raise
            # A server without OpenSSH's rename extension does not overwrite an existing file.
            with suppress(FileNotFoundError):
                self.ftp.remove(new)
            self.ftp.rename(old, new)


def _steps(callback: Any) -> Callable[[int, int], None]:
    """Adapt fsspec's callback, which expects increments, to paramiko, which reports the total bytes so far."""
    so_far = 0

    def step(bytes_so_far: int, total: int) -> None:
        nonlocal so_far
        callback.relative_update(bytes_so_far - so_far)
        so_far = bytes_so_far

    return step
