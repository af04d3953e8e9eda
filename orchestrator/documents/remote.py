"""Remote sources, read with fsspec: the objects of a bucket, the files of a server, the addresses in a list.

Listings give an object's ETag, time and size, which form its stamp. Unchanged objects are not downloaded.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from orchestrator.core import addresses, interrupts, storages
from orchestrator.core.errors import InputError, JobFilesError, StorageRefused
from orchestrator.documents.globs import Globs
from orchestrator.documents.ignored import IgnoredReason, never_document
from orchestrator.documents.redirects import is_elsewhere, led_elsewhere, staying_client
from orchestrator.documents.types import ExtractionError, RemoteObject, unreadable
from orchestrator.documents.walk import FoundFile, Skipped, Unlisted, WalkedFolder

WEB = ("http", "https")
LISTS = (".txt", ".list", ".urls")
"""Path endings that mark an address as an address list."""
MOST_LIST = 50_000_000
RACY_SECONDS = 60.0
"""Age in seconds below which a file without an ETag may still change without a new time."""
AT_ONCE = 8
LONG_SECONDS = 20.0
"""Seconds after which a failed request is not retried, because the storage's library has already retried."""
PAUSES = (0.2, 1.0)
"""Seconds to wait before each retry."""
_TAGS = ("ETag", "etag", "md5Hash", "generation", "content_md5", "Content-MD5", "version_id", "VersionId")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "modified", "created")
Result = TypeVar("Result")


class RemoteRoot(Struct, frozen=True):
    """Location of a source: a storage and a path there. `is_list` means that the path is a text file with an address
    per line.
    """

    address: str
    storage: Any
    path: str
    is_file: bool
    is_list: bool


def located(address: str, *, follow_links: bool = False) -> RemoteRoot:
    """Return a source's location. With `follow_links`, web servers may redirect to other hosts.

    Raises InputError if the location does not exist, JobFilesError if the storage does not answer.
    """
    if (problem := addresses.address_problem(address)) is not None:
        raise InputError(problem.message, field="path", hint=problem.hint)

    def look() -> RemoteRoot:
        is_web = urlsplit(address).scheme in WEB
        options = {"get_client": staying_client} if is_web and not follow_links else {}
        storage, path = storages.opened(address, **options)
        if is_web:
            is_list = urlsplit(address).path.lower().endswith(LISTS)
            return RemoteRoot(address, storage, path, is_file=not is_list, is_list=is_list)
        is_file = not address.endswith("/") and bool(storage.isfile(path))
        return RemoteRoot(address, storage, path.rstrip("/"), is_file, is_list=False)

    return asked(address, look)


def lone(place: RemoteRoot) -> FoundFile:
    info = asked(place.address, lambda: dict(place.storage.info(place.path)))
    name = place.path.rstrip("/").rpartition("/")[2]
    return FoundFile(place.path, name, RemoteObject(place.storage, place.path, info, is_alone=True))


def asked(address: str, ask: Callable[[], Result]) -> Result:
    """Call `ask` and return its result. Temporary failures are retried.

    Raises InputError if nothing is at `address` or access is denied. Raises JobFilesError for any other lasting
    failure.
    """
    for pause in (*PAUSES, None):
        began = time.monotonic()
        try:
            return ask()
        except FileNotFoundError as error:
            if (led := led_elsewhere(error)) is not None:
                raise InputError(str(led), field="path") from error
            raise InputError(f"There is nothing at {address}; correct the path.", field="path") from error
        except PermissionError as error:
            hint = error.hint if isinstance(error, StorageRefused) else storages.KEYS
            raise InputError(f"{address} may not be read: {why(error)}", field="path", hint=hint) from error
        except (InputError, ExtractionError):
            raise
        except Exception as error:  # each storage has its own errors
            if (led := led_elsewhere(error)) is not None:
                raise InputError(str(led), field="path") from error
            if storages.is_refusal(error):
                raise InputError(
                    f"{address} may not be read: {why(error)}", field="path", hint=storages.KEYS
                ) from error
            if pause is None or time.monotonic() - began > LONG_SECONDS:
                raise JobFilesError(f"{address} cannot be listed: {why(error)}", hint=_LATER) from error
            wait(pause)
    raise AssertionError("the last try returns or raises")


_LATER = "check that the storage can be reached, then run the same command again"


def why(error: BaseException) -> str:
    """Return a storage's error as one line."""
    told = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(told).partition("\n")[0]


def wait(seconds: float) -> None:
    """Sleep for `seconds`. Raises before the pause if a signal asked this process to end."""
    interrupts.check()
    time.sleep(seconds)


class _Chosen:
    def __init__(
        self,
        place: RemoteRoot,
        include: Globs,
        exclude: Globs,
        is_wanted: Callable[[str], bool],
        *,
        follow_links: bool = False,
    ) -> None:
        self._place = place
        self._include = include
        self._exclude = exclude
        self._is_wanted = is_wanted
        self._follow_links = follow_links


class RemoteWalk(_Chosen):
    """Iterates over `FoundFile | Unlisted | Skipped` below a location, in the order of their relative paths.

    Only the names of the open folders are in memory. Iteration raises InputError, JobFilesError.
    """

    def __iter__(self) -> Iterator[FoundFile | Unlisted | Skipped]:
        root = WalkedFolder(self._place.path, "", self._include.start, self._exclude.start)
        folders, pending = [root], [iter(self._names(root))]
        while pending:
            interrupts.check()
            folder, step = folders[-1], next(pending[-1], None)
            if step is None:
                pending.pop()
                folders.pop()
                continue
            name, info = step
            if info["type"] != "directory":
                yield from self._file(folder, name, info)
                continue
            include = self._include.descend(folder.include, name)
            if not include or self._exclude.accepts(folder.exclude, name):
                continue
            exclude = self._exclude.descend(folder.exclude, name)
            inner = WalkedFolder(info["name"].rstrip("/"), f"{folder.prefix}{name}/", include, exclude)
            try:
                pending.append(iter(self._names(inner)))
                folders.append(inner)
            except InputError as error:
                problem = unreadable(error.message)
                yield Unlisted(folder.prefix + name, problem)

    def _names(self, folder: WalkedFolder) -> list[tuple[str, Mapping[str, Any]]]:
        place = self._place
        address = place.address if not folder.prefix else f"{place.address.rstrip('/')}/{folder.prefix}"
        entries = asked(address, lambda: place.storage.ls(folder.path, detail=True))
        names = [(info["name"].rstrip("/").rpartition("/")[2], info) for info in entries]
        # Some storages mark a folder by an object with the folder's name.
        here = [(name, info) for name, info in names if name and info["name"].rstrip("/") != folder.path.rstrip("/")]
        here.sort(key=lambda item: item[0] + "/" if item[1]["type"] == "directory" else item[0])
        return here

    def _file(
        self, folder: WalkedFolder, name: str, info: Mapping[str, Any]
    ) -> Iterator[FoundFile | Unlisted | Skipped]:
        if not self._include.accepts(folder.include, name) or self._exclude.accepts(folder.exclude, name):
            return
        relative, path = folder.prefix + name, info["name"]
        if (reason := self._reason(name, info)) is not None:
            yield Skipped(relative, reason)
            return
        if info["type"] == "link":
            try:
                info = asked(path, lambda: dict(self._place.storage.info(path)))
            except InputError:
                message = "The link leads nowhere; repair it or exclude it."
                yield Unlisted(relative, unreadable(message))
                return
            if info["type"] != "file":
                yield Skipped(relative, IgnoredReason.LINK)
                return
        yield FoundFile(path, relative, RemoteObject(self._place.storage, path, info))

    def _reason(self, name: str, info: Mapping[str, Any]) -> IgnoredReason | None:
        if (reason := never_document(name)) is not None:
            return reason
        if not self._is_wanted(name):
            return IgnoredReason.KIND
        if info["type"] == "link":
            # Only the server knows the link's target, which may be outside the folder.
            return None if self._follow_links else IgnoredReason.LINK
        return None if info["type"] == "file" else IgnoredReason.SPECIAL


class AddressList(_Chosen):
    """The documents of an address list at a web server, one address per line, in order; `#` starts a comment.

    Addresses may be relative to the list. Without `follow_links`, they are limited like redirects: the list's author
    must not decide which host this machine contacts.
    """

    def __iter__(self) -> Iterator[FoundFile | Skipped]:
        return self.entries(with_info=False)

    def entries(self, *, with_info: bool) -> Iterator[FoundFile | Skipped]:
        """Yield the files. With `with_info`, the server is asked about each file; otherwise only the list is
        downloaded.
        """
        wanted = self._lines()
        if not with_info:
            yield from wanted
            return
        with ThreadPoolExecutor(AT_ONCE, "orch-look") as pool:
            for part in _parts(wanted, 10 * AT_ONCE):
                interrupts.check()
                yield from pool.map(_with_info, part)

    def _lines(self) -> Iterator[FoundFile | Skipped]:
        place, seen = self._place, set[str]()
        text = asked(place.address, lambda: place.storage.cat_file(place.path, end=MOST_LIST))
        base = place.address.rpartition("/")[0] + "/"
        for number, line in enumerate(text.decode("utf-8-sig", "replace").splitlines(), 1):
            wanted = line.strip()
            if not wanted or wanted.startswith("#"):
                continue
            address = urljoin(base, wanted)
            self._check(address, number)
            relative = address.removeprefix(base) if address.startswith(base) else address.partition("://")[2]
            if relative in seen or not self._include.match(relative) or self._exclude.match(relative):
                continue
            seen.add(relative)
            name = relative.rpartition("/")[2]
            if (reason := never_document(name)) is not None:
                yield Skipped(relative, reason)
            elif not self._is_wanted(name):
                yield Skipped(relative, IgnoredReason.KIND)
            else:
                yield FoundFile(address, relative, RemoteObject(place.storage, address, {}))

    def _check(self, address: str, number: int) -> None:
        there = urlsplit(address)
        problem = None
        if there.scheme not in WEB or not there.hostname:
            problem = f"{address!r} is not an http(s) address"
        elif there.username or there.password or there.query:
            problem = "an address may carry no password and no query"
        elif not self._follow_links and is_elsewhere(self._place.address, address):
            problem = f"{address} differs from the list in host, port or scheme; `follow_links: true` follows it"
        if problem is not None:
            raise InputError(problem, file=self._place.address, line=number)


def _with_info(found: FoundFile | Skipped) -> FoundFile | Skipped:
    if isinstance(found, Skipped) or found.remote is None:
        return found
    try:
        info = dict(found.remote.storage.info(found.remote.path))
    except Exception:  # noqa: BLE001  (the download reports what is wrong with it)
        return found
    return found._replace(remote=found.remote._replace(info=info))


def _parts(items: Iterator[Result], size: int) -> Iterator[list[Result]]:
    part: list[Result] = []
    for item in items:
        part.append(item)
        if len(part) == size:
            yield part
            part = []
    yield part


def stamp(remote: RemoteObject, way: str, now_ns: int) -> str | None:
    """Return a stamp of an object's content from its listing; None if the listing is not conclusive."""
    info = remote.info
    tag = next((str(info[name]) for name in _TAGS if info.get(name)), None)
    changed = next((info[name] for name in _TIMES if info.get(name)), None)
    if tag is None:
        at = _seconds(changed)
        if at is None or at > now_ns / 1e9 - RACY_SECONDS:
            return None
    told = f"{remote.path}\0{info.get('size')}\0{tag}\0{changed}"
    return f"{hashlib.sha256(told.encode('utf-8', 'backslashreplace')).hexdigest()[:32]}.{way}"


def _seconds(changed: Any) -> float | None:
    if isinstance(changed, datetime):
        return changed.timestamp()
    if isinstance(changed, int | float):
        return float(changed)
    from email.utils import parsedate_to_datetime

    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return read(str(changed)).timestamp()
        except ValueError:
            continue
    return None
