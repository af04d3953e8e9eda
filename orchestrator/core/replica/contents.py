"""What of a folder is replicated, and the folder at one moment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

MARK = "replica.json"
"""In a folder that has a replica: what it knows of that."""
Image = bytes | Path
"""The whole of a file that is replaced as one: its bytes, or a copy of it that nobody else writes."""


@dataclass(frozen=True, slots=True)
class ReplicaLayout:
    """Which paths under a folder are replicated.

    Files under `folders` (patterns) grow, or come and go. `images` (patterns) are replaced as a whole, and restored
    last: databases. `has_state` says of a folder whether something would be lost if it became a copy of another one:
    it `holds` that, and `elsewhere` says what to do about it.
    """

    folders: tuple[str, ...]
    images: tuple[str, ...]
    has_state: Callable[[Path], bool]
    holds: str
    elsewhere: str

    def tops(self, root: Path) -> Iterator[Path]:
        """The folders that are there now."""
        for pattern in self.folders:
            yield from root.glob(pattern)

    def is_image(self, path: str) -> bool:
        """Whether a path under the folder is that of an image."""
        return any(fnmatchcase(path, pattern) for pattern in self.images)

    def has(self, path: str) -> bool:
        """Whether a path under the folder is replicated."""
        is_inside = not path.startswith("/") and ".." not in PurePosixPath(path).parts
        is_file = any(fnmatchcase(path, f"{pattern}/?*") for pattern in self.folders)
        return is_inside and (is_file or self.is_image(path))


@dataclass(frozen=True, slots=True)
class Cut:
    """A folder at one moment: what its images say is not ahead of its files.

    `images` is None where none has changed since the cut before. `files` has the size of each file by its path, None
    where what was sent of it before stays. `unsure` names those that may differ from what was sent though they are no
    shorter. Files that have changed since are found, by their path, under `root`.
    """

    images: Mapping[str, Image] | None
    files: Mapping[str, int | None]
    unsure: Collection[str]
    root: Path


class Contents(Protocol):
    """A folder that is replicated. Every call belongs to the replicator's event loop, and may raise StorageError or
    OSError."""

    root: Path

    def version(self) -> Hashable:
        """What changes with every change that is to be on the replica before it is acknowledged."""

    async def cut(self, *, is_new: bool) -> Cut:
        """The folder now; `is_new` where the version has changed since the last one that was sent."""

    def sent(self, cut: Cut) -> None:
        """All of a cut is on the replica."""
