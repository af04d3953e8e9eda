"""The replicated part of a folder, and its state at one moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

from msgspec import Struct

MARK = "replica.json"
"""File in a replicated folder that records the folder's state relative to its replica."""
Image = bytes | Path
"""Contents of a file that is replaced as a whole: its bytes, or the path of a copy that nothing else writes."""


class ReplicaLayout(Struct, frozen=True):
    """The paths under a folder that are replicated.

    Files under `folders` (patterns) grow, or appear and disappear. `images` (patterns) are databases: they are
    replaced as a whole, and restored last. `has_state` tests if a folder has state that it would lose by becoming a
    copy. `holds` names that state, and `elsewhere` says what to do about it.
    """

    folders: tuple[str, ...]
    images: tuple[str, ...]
    has_state: Callable[[Path], bool]
    holds: str
    elsewhere: str

    def tops(self, root: Path) -> Iterator[Path]:
        """Yield the folders under `root` that match `folders`."""
        for pattern in self.folders:
            yield from root.glob(pattern)

    def is_image(self, path: str) -> bool:
        """True if a path under the folder is an image."""
        return any(fnmatchcase(path, pattern) for pattern in self.images)

    def has(self, path: str) -> bool:
        """True if a path under the folder is replicated."""
        is_inside = not path.startswith("/") and ".." not in PurePosixPath(path).parts
        is_file = any(fnmatchcase(path, f"{pattern}/?*") for pattern in self.folders)
        return is_inside and (is_file or self.is_image(path))


class Cut(Struct, frozen=True):
    """State of a folder at one moment. Its images are never newer than its files.

    `images` is None if no image has changed since the previous cut. `files` maps each path to its size, or to None to
    keep the part that was already sent. `unsure` names files that may differ from the sent part although they are not
    shorter. The files themselves are under `root`, and may have changed since.
    """

    images: Mapping[str, Image] | None
    files: Mapping[str, int | None]
    unsure: Collection[str]
    root: Path


class Contents(Protocol):
    """A replicated folder, used in the replicator's event loop. Every call may raise StorageError or OSError."""

    root: Path

    def version(self) -> Hashable:
        """Return the folder's version. It differs after each change that must be replicated before it is
        acknowledged.
        """

    async def cut(self, *, is_new: bool) -> Cut:
        """Return the folder's current state; `is_new` is true if the version has changed since the last sent cut."""

    def sent(self, cut: Cut) -> None:
        """Note that the whole cut has reached the replica."""
