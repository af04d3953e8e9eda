"""The replicated parts of a home at one moment: databases, and files of jobs and servers.

A home has several databases: its own (unless that is Postgres), and one for each batch server. orch reads all of them
while nothing writes to the home's own database. This database then agrees with the servers about batches. Files are
read after the databases. A changed file gets a hard link in the folder `.replica`, which keeps its content if the
file is removed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from msgspec import Struct, field

from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.replica.contents import Cut, Image, ReplicaLayout
from orchestrator.core.replica.who_is_active import seconds
from orchestrator.pipeline.disk import DATABASE
from orchestrator.pipeline.gc.backup import is_kept
from orchestrator.server.database import FILE_NAME as SERVER_DATABASE
from orchestrator.server.ordered_results import INDEX_NAME
from orchestrator.server.replicated_folder import LAYOUT as SERVER_LAYOUT
from orchestrator.settings.home import Home
from orchestrator.store.database_images import WatchedDatabase, has_rows, reading_at_once

SERVER_DATABASES = f"servers/*/{SERVER_DATABASE}"
SMALL_FILES = ("home.id", "telemetry.json")
QUIET_SECONDS, LONGEST_SECONDS = 1.0, 10.0
"""Seconds to wait for a moment without any write, and maximum seconds to wait until the databases agree."""
CLOCK_SECONDS = 0.1
"""Maximum seconds by which file times lag behind the clock."""
APPENDED = ("output.jsonl", "error.jsonl", "requests.jsonl", "sent")
"""Files that only grow while they keep their inode."""


def _has_jobs(root: Path) -> bool:
    if has_rows(root / DATABASE, ("jobs", "schedules")):
        return True
    # If the database is elsewhere, files of jobs belong to it once the home has an id there.
    with suppress(FileNotFoundError):
        return (root / "home.id").exists() and any((root / "jobs").iterdir())
    return False


LAYOUT = ReplicaLayout(
    folders=("jobs", *(f"servers/*/{folder}" for folder in SERVER_LAYOUT.folders)),
    images=(DATABASE, SERVER_DATABASES, *SMALL_FILES),
    has_state=_has_jobs,
    holds="jobs or schedules",
    elsewhere="set ORCH_HOME to an empty folder",
)


class _Seen(Struct, frozen=True):
    """A file as last read: its inode, its last write (nanoseconds), and its valid size in bytes."""

    inode: int
    modified: int
    size: int


class _Found(Struct, frozen=True):
    """The files of a home at one moment.

    A size is None if the sent content is unchanged. `gone` are files that were removed in that moment.
    """

    size: dict[str, int | None]
    seen: dict[str, _Seen] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)


class HomeContents:
    """The contents of a daemon's home. With `is_shared`, its own database is elsewhere, shared by several
    machines.
    """

    def __init__(self, home: Home, known: Mapping[str, int], *, is_shared: bool, as_of: float) -> None:
        """Start from `known`, the bytes of each file on the replica.

        A file of that size that is untouched since `as_of` (seconds since 1970) counts as equal.
        """
        self.root = home.root
        self._is_shared = is_shared
        self._stage = home.replica_stage
        shutil.rmtree(self._stage, ignore_errors=True)
        self._lock = threading.Lock()
        self._databases: dict[str, WatchedDatabase] = {}
        self._versions = count(1)
        self._sent = {
            path: seen
            for path, seen, changed in self._files()
            if known.get(path) == seen.size and max(changed, seen.modified) < (as_of - CLOCK_SECONDS) * 1e9
        }
        self._next: Mapping[str, _Seen] = {}
        self._unsure: set[str] = set()
        """Files that may differ from their copies on the replica, until a cut with these files has been sent."""
        self._require_one_disk()
        self._version: Hashable = None
        self._looked_at = self._began = self.sent_to = (0.0, 0.0)
        """Time before which all records are on the replica, by two clocks: `who_is_active.seconds`, and seconds since
        1970.
        """
        self.durable: Callable[[], Mapping[str, int | None]] = dict
        """Durable bytes of each growing result file, by path; None if unknown."""
        self.on_sent: Callable[[], None] = lambda: None

    def close(self) -> None:
        for database in self._databases.values():
            database.close()
        shutil.rmtree(self._stage, ignore_errors=True)

    def version(self) -> Hashable:
        """Return a value that changes with each transaction of a database in the home.

        A shared database may name other files at any time, so every call then returns a new version.
        """
        self._looked_at = seconds(), time.time()
        self._version = self._seen_version()
        return (self._version, next(self._versions)) if self._is_shared else self._version

    def _seen_version(self) -> Hashable:
        return tuple((path, database.version()) for path, database in self._open_databases().items())

    async def cut(self, *, is_new: bool) -> Cut:
        """Return the home's current state."""
        self._began = self._looked_at
        return await asyncio.to_thread(self._cut, is_new)

    def sent(self, cut: Cut) -> None:
        """Record that a whole cut has reached the replica."""
        self._sent, self.sent_to = dict(self._next), self._began
        self._unsure.clear()
        self.on_sent()

    def _cut(self, is_new: bool) -> Cut:
        self._stage.mkdir(mode=0o700, exist_ok=True)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < LONGEST_SECONDS:
            if (found := self._at_one_moment(is_new, is_late=waited > QUIET_SECONDS)) is not None:
                return found
        raise StorageError(f"{self.root} changes faster than it can be copied")

    def _at_one_moment(self, is_new: bool, *, is_late: bool) -> Cut | None:
        """Return a cut, or None if a write during the call could leave its parts inconsistent.

        With `is_late`, a file that existed only briefly may be missing: a successor would ask its rows again.
        """
        before = {path for path, _, _ in self._files()}
        if not is_new:
            found = self._current_files(before)
            if self._seen_version() == self._version:
                return self._of(None, found)
        databases, began = self._open_databases(), self._seen_version()
        own = databases.get(DATABASE)
        with reading_at_once(own, [one for one in databases.values() if one is not own]) as is_quiet:
            if not is_quiet:
                return None
            found = self._current_files(before)
            # A removed file that a database may name must be on the replica by now.
            is_whole = self._seen_version() == began and found.gone <= self._sent.keys()
            if not is_whole and not is_late:
                return None
            images: dict[str, Image] = {
                path: database.image(self._stage / path.replace("/", "-")) for path, database in databases.items()
            }
        images |= {name: (self.root / name).read_bytes() for name in SMALL_FILES if (self.root / name).is_file()}
        return self._of(images, found)

    def _of(self, images: Mapping[str, Image] | None, found: _Found) -> Cut:
        self._next = found.seen
        self._unsure |= found.unsure
        return Cut(images, found.size, self._unsure & found.size.keys(), self._stage)

    def _current_files(self, before: Collection[str]) -> _Found:
        durable = self.durable()
        found = _Found(dict.fromkeys(before))
        for path, seen, _ in self._files():
            size = durable.get(path, seen.size)
            last = self._sent.get(path)
            if size is None:
                found.size[path] = None
                if last is not None:
                    found.seen[path] = last
                continue
            now = _Seen(seen.inode, seen.modified, min(seen.size, size))
            if now != last:
                is_same_file = self._is_staged(path, now.inode)
                if not is_same_file and not self._link(path):
                    continue
                if not is_same_file or not _has_grown(path, last, now):
                    found.unsure.add(path)
            found.size[path], found.seen[path] = now.size, now
        found.gone.update(path for path in before if path not in found.seen and durable.get(path, 0) is not None)
        self._unstage(found.size)
        return found

    def _is_staged(self, path: str, inode: int) -> bool:
        """True if the hard link is to the file with this inode. While the link exists, no other file gets that inode
        number.
        """
        with suppress(FileNotFoundError):
            return (self._stage / path).stat().st_ino == inode
        return False

    def _link(self, path: str) -> bool:
        staged = self._stage / path
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.unlink(missing_ok=True)
        try:
            os.link(self.root / path, staged)
        except FileNotFoundError:
            return False
        return True

    def _require_one_disk(self) -> None:
        for top in LAYOUT.tops(self.root):
            if top.stat().st_dev != self.root.stat().st_dev:
                raise UsageError(
                    f"{top} is on a different disk from {self.root}",
                    hint="a replica needs all of a home on one disk: set ORCH_HOME to a folder there",
                )

    def _unstage(self, sizes: Mapping[str, int | None]) -> None:
        """Remove the links to files that were removed from the home, to free their bytes."""
        for parent, _, names in os.walk(self._stage):
            for name in names:
                path = Path(parent, name)
                if sizes.get(path.relative_to(self._stage).as_posix()) is None:
                    path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[str, _Seen, int]]:
        """Yield each file of jobs and servers: its path, its state, and its last change of name or mode
        (nanoseconds).
        """
        for top in LAYOUT.tops(self.root):
            yield from _below(str(self.root), top.relative_to(self.root).as_posix())

    def _open_databases(self) -> dict[str, WatchedDatabase]:
        """Return the current databases by path. Two threads may call this at once; neither waits for a cut."""
        with self._lock:
            own = [] if self._is_shared else [self.root / DATABASE]
            paths = [path for path in (*own, *sorted(self.root.glob(SERVER_DATABASES))) if path.exists()]
            names = {path.relative_to(self.root).as_posix(): path for path in paths}
            for name, database in list(self._databases.items()):
                if name not in names or not database.is_there:
                    self._databases.pop(name).close()
            for name, path in names.items():
                if name not in self._databases:
                    self._databases[name] = WatchedDatabase(path)
            return {name: self._databases[name] for name in names}


def _has_grown(path: str, last: _Seen | None, now: _Seen) -> bool:
    """True if the file still begins with the bytes that were sent."""
    return path.endswith(APPENDED) and last is not None and last.inode == now.inode and last.size <= now.size


def _below(root: str, folder: str) -> Iterator[tuple[str, _Seen, int]]:
    """Yield the files below a folder, with one system call per file: a home of many nights has thousands of files."""
    with suppress(FileNotFoundError), os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            name = entry.name
            if not is_kept(name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _below(root, f"{folder}/{name}")
            elif not name.startswith((".", INDEX_NAME)):
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        seen = _Seen(found.st_ino, found.st_mtime_ns, found.st_size)
                        yield f"{folder}/{name}", seen, found.st_ctime_ns
