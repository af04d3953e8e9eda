"""Storages that fsspec knows, opened so that threads and long-running processes may use them."""

from __future__ import annotations

import logging
from threading import local
from typing import Any
from urllib.parse import urlsplit

SFTP = ("sftp", "ssh")
KEYS = "the storage's own variables hold the keys, such as AWS_ACCESS_KEY_ID"
_LOGGERS = ("azure", "fsspec", "gcsfs", "paramiko")
"""What these log of each try that failed would go to stderr where nothing is set up for logs: errors tell it."""

_OF_KEYS = ("NoCredentialsError", "DefaultCredentialsError", "ClientAuthenticationError")
"""What botocore, Google's and Azure's libraries raise of keys, by name: they are there only where asked for."""
_NOWHERE = logging.NullHandler()


class StorageRefused(PermissionError):
    """Why a storage is not used, or does not let this user in, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def opened(address: str, **options: Any) -> tuple[Any, str]:
    """The storage of an address, as it is now, and the path there; `options` are those of its class in fsspec.

    Raises what the storage raises, and StorageRefused.
    """
    from fsspec import get_filesystem_class
    from fsspec.core import url_to_fs

    for name in _LOGGERS:
        logging.getLogger(name).addHandler(_NOWHERE)
    scheme = urlsplit(address).scheme
    if scheme in SFTP:
        from orchestrator.core.sftp import Sftp

        return Sftp(**Sftp._get_kwargs_from_urls(address), **options), Sftp._strip_protocol(address)
    # What fsspec keeps of others is the connection of an earlier night, which its server has closed since.
    fresh = {} if _is_shared(get_filesystem_class(scheme)) else {"skip_instance_cache": True}
    try:
        storage, path = url_to_fs(address, **fresh, **options)
    except ValueError as error:  # of what its variables say, as no call was made yet
        raise StorageRefused(str(error), KEYS) from error
    storage.invalidate_cache()
    return storage, path


def is_refusal(error: BaseException) -> bool:
    """Whether a storage says that this user may not, or has no keys: by type and by HTTP status."""
    # In this order: the last warns, where there is the one before it.
    status = next((getattr(error, name) for name in ("status_code", "status", "code") if hasattr(error, name)), None)
    return type(error).__name__ in _OF_KEYS or status in (401, 403)


class PerThread:
    """Storages for threads: one whose calls block has one connection, whose answers go to whoever reads first."""

    def __init__(self) -> None:
        self._local = local()

    def here(self, storage: Any) -> Any:
        """The storage, or one like it for this thread alone. Raises what connecting raises."""
        if _is_shared(storage):
            return storage
        known: dict[int, tuple[Any, Any]] = self._local.__dict__.setdefault("known", {})
        if id(storage) not in known:
            own = type(storage)(*storage.storage_args, **{**storage.storage_options, "skip_instance_cache": True})
            # The first is kept with it, so that no other gets its id.
            known[id(storage)] = storage, own
        return known[id(storage)][1]


def _is_shared(storage: Any) -> bool:
    """Whether a storage, or a class of them, may be used by many threads.

    Those of fsspec may whose calls run in a loop of its own; storages that are not fsspec's are made for threads.
    """
    from fsspec import AbstractFileSystem

    kind = storage if isinstance(storage, type) else type(storage)
    return not issubclass(kind, AbstractFileSystem) or bool(storage.async_impl)
