"""Storages of fsspec, opened for use by threads and long-running processes."""

from __future__ import annotations

import logging
from threading import local
from typing import Any
from urllib.parse import urlsplit

from orchestrator.core.errors import StorageRefused

SFTP = ("sftp", "ssh")
KEYS = "the storage's own variables hold the keys, such as AWS_ACCESS_KEY_ID"
_LOGGERS = ("azure", "fsspec", "gcsfs", "paramiko")
"""Libraries whose logs of failed attempts would go to stderr without a log setup; the errors say the same."""

_OF_KEYS = ("NoCredentialsError", "DefaultCredentialsError", "ClientAuthenticationError")
"""Errors about keys of botocore, Google's and Azure's libraries, by name: the libraries are optional."""
_NOWHERE = logging.NullHandler()


def opened(address: str, **options: Any) -> tuple[Any, str]:
    """Open an address's storage, without cached listings; return it and the path there. `options` are fsspec's.

    Raises the storage's own errors, and StorageRefused.
    """
    from fsspec import get_filesystem_class
    from fsspec.core import url_to_fs

    for name in _LOGGERS:
        logging.getLogger(name).addHandler(_NOWHERE)
    scheme = urlsplit(address).scheme
    if scheme in SFTP:
        from orchestrator.core.sftp import Sftp

        return Sftp(**Sftp._get_kwargs_from_urls(address), **options), Sftp._strip_protocol(address)
    # fsspec would reuse a connection of an earlier night, which the server has closed since.
    fresh = {} if _is_shared(get_filesystem_class(scheme)) else {"skip_instance_cache": True}
    try:
        storage, path = url_to_fs(address, **fresh, **options)
    except ValueError as error:  # about its variables, as no call was made yet
        raise StorageRefused(str(error), KEYS) from error
    storage.invalidate_cache()
    return storage, path


def is_refusal(error: BaseException) -> bool:
    """True if a storage refuses this user or lacks keys, by type and HTTP status."""
    # Keep this order: `code` warns on objects that have an earlier name.
    status = next((getattr(error, name) for name in ("status_code", "status", "code") if hasattr(error, name)), None)
    return type(error).__name__ in _OF_KEYS or status in (401, 403)


class PerThread:
    """Storages for threads: a storage with blocking calls has one connection, whose answers go to any reader."""

    def __init__(self) -> None:
        self._local = local()

    def here(self, storage: Any) -> Any:
        """Return the storage, or a copy of it for this thread alone. Raises connection errors."""
        if _is_shared(storage):
            return storage
        known: dict[int, tuple[Any, Any]] = self._local.__dict__.setdefault("known", {})
        if id(storage) not in known:
            own = type(storage)(*storage.storage_args, **{**storage.storage_options, "skip_instance_cache": True})
            # The first is kept too, so that no other object gets its id.
            known[id(storage)] = storage, own
        return known[id(storage)][1]


def _is_shared(storage: Any) -> bool:
    """True if many threads may use a storage, or a class of storages.

    fsspec's asynchronous storages run in a loop of their own; storages from elsewhere are made for threads.
    """
    from fsspec import AbstractFileSystem

    kind = storage if isinstance(storage, type) else type(storage)
    return not issubclass(kind, AbstractFileSystem) or bool(storage.async_impl)
