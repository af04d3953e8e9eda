"""fsspec storages, opened for use by threads and long-running processes."""

from __future__ import annotations

import logging
from threading import local
from typing import Any
from urllib.parse import urlsplit

from orchestrator.core.errors import StorageRefused

SFTP = ("sftp", "ssh")
KEYS = "the storage's own variables hold the keys, such as AWS_ACCESS_KEY_ID"
_LOGGERS = ("azure", "fsspec", "gcsfs", "paramiko")
"""Loggers of libraries that log failed attempts to stderr by default; the raised errors say the same."""

_OF_KEYS = ("NoCredentialsError", "DefaultCredentialsError", "ClientAuthenticationError")
"""Names of the credential errors of botocore and of Google's and Azure's libraries, which are optional."""
_NOWHERE = logging.NullHandler()


def opened(address: str, **options: Any) -> tuple[Any, str]:
    """Open the storage of an address, without cached listings. Return the storage and the path within it.

    `options` are passed to fsspec. Raises StorageRefused, or the storage's own errors.
    """
    from fsspec import get_filesystem_class
    from fsspec.core import url_to_fs

    for name in _LOGGERS:
        logging.getLogger(name).addHandler(_NOWHERE)
    scheme = urlsplit(address).scheme
    if scheme in SFTP:
        from orchestrator.core.sftp import Sftp

        return Sftp(**Sftp._get_kwargs_from_urls(address), **options), Sftp._strip_protocol(address)
    # fsspec would reuse a connection from an earlier night, which the server has closed by now.
    fresh = {} if _is_shared(get_filesystem_class(scheme)) else {"skip_instance_cache": True}
    try:
        storage, path = url_to_fs(address, **fresh, **options)
    except ValueError as error:  # the error is about variables: no call was made yet
        raise StorageRefused(str(error), KEYS) from error
    storage.invalidate_cache()
    return storage, path


def is_refusal(error: BaseException) -> bool:
    """True if the type or HTTP status of an error shows that a storage refuses this user or lacks keys."""
    # Keep this order: reading `code` warns on objects that also have an earlier name.
    status = next((getattr(error, name) for name in ("status_code", "status", "code") if hasattr(error, name)), None)
    return type(error).__name__ in _OF_KEYS or status in (401, 403)


class PerThread:
    """Gives each thread its own copy of a storage that threads cannot share.

    A storage with blocking calls has one connection: threads could get each other's data.
    """

    def __init__(self) -> None:
        self._local = local()

    def here(self, storage: Any) -> Any:
        """Return the storage if threads may share it, or else this thread's own copy. Raises connection errors."""
        if _is_shared(storage):
            return storage
        known: dict[int, tuple[Any, Any]] = self._local.__dict__.setdefault("known", {})
        if id(storage) not in known:
            own = type(storage)(*storage.storage_args, **{**storage.storage_options, "skip_instance_cache": True})
            # Keep the original too, so that no other object gets its id.
            known[id(storage)] = storage, own
        return known[id(storage)][1]


def _is_shared(storage: Any) -> bool:
    """True if threads may share a storage, or all storages of a class.

    fsspec's asynchronous storages run in their own loop; other libraries' storages are built for threads.
    """
    from fsspec import AbstractFileSystem

    kind = storage if isinstance(storage, type) else type(storage)
    return not issubclass(kind, AbstractFileSystem) or bool(storage.async_impl)
