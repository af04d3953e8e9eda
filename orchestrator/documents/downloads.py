"""Downloads files of remote sources shortly before they are read, and removes them afterwards."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event
from typing import TypeVar

from fsspec.callbacks import Callback

from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.core.storages import PerThread
from orchestrator.documents.claimed_folder import ClaimedFolder
from orchestrator.documents.lines import too_large
from orchestrator.documents.redirects import led_elsewhere
from orchestrator.documents.remote import AT_ONCE, LONG_SECONDS, PAUSES, why
from orchestrator.documents.types import DocumentProblem, ExtractionError, RemoteObject, unreadable

MOST_FAILED = 5
"""Number of consecutive failed downloads after which orch blames the storage, not the objects."""
WAIT_SECONDS = 0.2
CLOSE_SECONDS = 10.0
"""Maximum seconds to wait until running downloads notice that they were cancelled."""
Item = TypeVar("Item")


class Downloads:
    """Downloads files into a temporary folder. It calls `check` while it waits. For use by one thread."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._pool = ThreadPoolExecutor(AT_ONCE, "orch-download")
        self._folder = ClaimedFolder()
        self._number = 0
        self._failed = 0
        self._is_closed = Event()
        self._under_way: set[Future[str]] = set()
        self._storages = PerThread()

    def close(self) -> None:
        """Cancel the downloads and remove all files."""
        self._is_closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Storages recreate the folder if it is missing.
        wait([each for each in self._under_way if not each.cancelled()], CLOSE_SECONDS)
        self._folder.close()

    def ahead(
        self, items: Iterable[Item], remote_of: Callable[[Item], tuple[RemoteObject, int | None] | None]
    ) -> Iterator[tuple[Item, str | ExtractionError | None]]:
        """Yield each item with the path of its downloaded file, or with the error. For a local file, yield None
        instead.

        `remote_of` returns an item's remote file and its limit in bytes, or None for a local file. Raises
        JobFilesError if the storage fails.
        """
        waiting: deque[tuple[Item, Future[str] | None]] = deque()
        for item in items:
            remote = remote_of(item)
            if remote is None and not waiting:
                yield item, None
                continue
            waiting.append((item, None if remote is None else self._begin(*remote)))
            if len(waiting) > 2 * AT_ONCE:
                yield self._done(*waiting.popleft())
        while waiting:
            yield self._done(*waiting.popleft())

    def one(self, remote: RemoteObject, limit: int | None) -> str | ExtractionError:
        path = self._done(None, self._begin(remote, limit))[1]
        assert path is not None
        return path

    def drop(self, path: str) -> None:
        """Remove a downloaded file after it was read. Files outside the folder of downloads stay."""
        if os.path.dirname(path) == str(self._folder.path):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _begin(self, remote: RemoteObject, limit: int | None) -> Future[str]:
        self._number += 1
        to = str(self._folder.path / str(self._number))
        begun = self._pool.submit(_download, remote, to, limit, self._is_closed, self._storages)
        self._under_way = {begun, *(each for each in self._under_way if not each.done())}
        return begun

    def _done(self, item: Item, future: Future[str] | None) -> tuple[Item, str | ExtractionError | None]:
        if future is None:
            return item, None
        while True:
            self._check()
            try:
                path = future.result(WAIT_SECONDS)
            except TimeoutError:
                if not future.done():
                    continue
                raise
            except _Failed as error:
                self._failed += 1
                if error.is_alone or self._failed >= MOST_FAILED:
                    many = f"{error.path}: the download" if error.is_alone else f"{self._failed} downloads in a row"
                    raise JobFilesError(
                        f"{many} failed: {error}",
                        hint="check that the storage can be reached, then run the same command again",
                    ) from error
                return item, unreadable(f"The download failed: {error}")
            except ExtractionError as error:
                return item, error
            self._failed = 0
            return item, path


class _Failed(Exception):
    def __init__(self, remote: RemoteObject, error: Exception) -> None:
        super().__init__(why(error))
        self.path = remote.path
        self.is_alone = remote.is_alone


class _NotWanted(Exception):
    """The download is no longer needed: its folder was closed."""


class _Limit(Callback):  # type: ignore[misc]  # fsspec has no types
    def __init__(self, limit: int | None, is_closed: Event) -> None:
        super().__init__()
        self._limit = limit
        self._is_closed = is_closed
        self._bytes = 0

    def relative_update(self, inc: int = 1) -> None:
        if self._is_closed.is_set():
            raise _NotWanted
        self._bytes += inc
        if self._limit is not None and self._bytes > self._limit:
            raise too_large(self._bytes, self._limit)


def _download(remote: RemoteObject, to: str, limit: int | None, is_closed: Event, storages: PerThread) -> str:
    if limit is not None and remote.size is not None and remote.size > limit:
        raise too_large(remote.size, limit)
    for pause in (*PAUSES, None):
        if is_closed.is_set():
            raise _NotWanted
        began = time.monotonic()
        try:
            storages.here(remote.storage).get_file(remote.path, to, callback=_Limit(limit, is_closed))
            _check_size(remote, to)
            return to
        except FileNotFoundError:
            told = "It was listed and is gone; run again if that was a mistake."
            raise ExtractionError(DocumentProblem.VANISHED, told) from None
        except PermissionError as error:
            told = f"It may not be read ({why(error)}); give this user access to it, or exclude it."
            raise unreadable(told) from error
        except (ExtractionError, InputError, _NotWanted):
            with suppress(FileNotFoundError):
                os.unlink(to)
            raise
        except Exception as error:  # each storage has its own errors
            if (led := led_elsewhere(error)) is not None:
                raise unreadable(f"{led}.") from error
            if pause is None or time.monotonic() - began > LONG_SECONDS:
                raise _Failed(remote, error) from error
            is_closed.wait(pause)
    raise AssertionError("the last try returns or raises")


def _check_size(remote: RemoteObject, path: str) -> None:
    size, expected = os.stat(path).st_size, remote.size
    if expected is not None and size != expected:  # the connection may have been cut
        raise OSError(f"{size:,} of {expected:,} bytes arrived")
