"""The files below a folder, in the order of their relative paths, one folder's names in memory at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from orchestrator.documents.globs import Globs, State
from orchestrator.documents.types import DocumentProblem, ExtractionError
from orchestrator.errors import InputError


class Found(NamedTuple):
    """A file to read: its path for the system, and relative to the source with `/` (a lone file: its name)."""

    path: str
    relative: str


class Unlisted(NamedTuple):
    """A folder or special file that cannot be read, and why."""

    relative: str
    error: ExtractionError


class _Folder(NamedTuple):
    path: str
    prefix: str  # "" for the root, otherwise the relative path and "/"
    include: State
    exclude: State


class Walk:
    """Iterate over `Found | Unlisted` below `root`; may be iterated more than once.

    Raises InputError for bad patterns at once, and for a root that cannot be listed when iterated.
    Links to folders are followed when they lead out of the root, into a hidden folder, or when a pattern
    spells them out; every real folder is entered once. A link to a file that is found anyway is left out.
    """

    def __init__(self, root: str, include: Globs, exclude: Globs, is_wanted: Callable[[str], bool]) -> None:
        """`is_wanted` judges the name of a file that the patterns let through."""
        self._root = root
        self._real_root = os.path.realpath(root)
        self._include = include
        self._exclude = exclude
        self._is_wanted = is_wanted

    def __iter__(self) -> Iterator[Found | Unlisted]:
        entered: set[tuple[int, int]] = set()
        root = _Folder(self._root, "", self._include.start, self._exclude.start)
        try:
            pending = [iter(_names(root.path, entered))]
        except OSError as error:
            raise InputError(
                f"The folder cannot be listed ({error.strerror}); give this user read permission.", file=self._root
            ) from error
        folders = [root]
        while pending:
            folder = folders[-1]
            step = next(pending[-1], None)
            if step is None:
                pending.pop()
                folders.pop()
                continue
            name, kind, linked = step
            if kind != "folder":
                yield from self._file(folder, name, kind, linked)
                continue
            inner = self._enter(folder, name, linked)
            if inner is None:
                continue
            try:
                pending.append(iter(_names(inner.path, entered)))
                folders.append(inner)
            except OSError as error:
                yield Unlisted(folder.prefix + name, listing_problem(error))

    def _file(self, folder: _Folder, name: str, kind: str, linked: bool) -> Iterator[Found | Unlisted]:
        if not self._include.accepts(folder.include, name) or self._exclude.accepts(folder.exclude, name):
            return
        if not self._is_wanted(name):
            return
        found = Found(f"{folder.path}/{name}", folder.prefix + name)
        if kind == "file":
            if not (linked and self._found_anyway(found.path)):
                yield found
        elif kind == "broken":
            message = "The link leads nowhere; mend it or exclude it."
            yield Unlisted(found.relative, ExtractionError(DocumentProblem.UNREADABLE, message))
        else:
            yield Unlisted(found.relative, not_a_file())

    def _enter(self, folder: _Folder, name: str, linked: bool) -> _Folder | None:
        include = self._include.descend(folder.include, name)
        if not include or self._exclude.accepts(folder.exclude, name):
            return None
        path = f"{folder.path}/{name}"
        if linked and not self._include.names(folder.include, name) and self._leads_back(path):
            return None
        return _Folder(path, f"{folder.prefix}{name}/", include, self._exclude.descend(folder.exclude, name))

    def _leads_back(self, path: str) -> bool:
        """Whether a linked folder is reached by its own name anyway, or holds the root itself."""
        target = os.path.realpath(path)
        if os.path.commonpath((target, self._real_root)) == target:
            return True
        relative = self._inside(target)
        return relative is not None and not any(part.startswith(".") for part in relative.split("/"))

    def _found_anyway(self, path: str) -> bool:
        relative = self._inside(os.path.realpath(path))
        if relative is None or not self._include.match(relative):
            return False
        parts = relative.split("/")
        return self._is_wanted(parts[-1]) and not any(
            self._exclude.match("/".join(parts[: i + 1])) for i in range(len(parts))
        )

    def _inside(self, target: str) -> str | None:
        prefix = self._real_root.rstrip("/") + "/"
        return target[len(prefix) :] if target.startswith(prefix) else None


def _names(path: str, entered: set[tuple[int, int]]) -> list[tuple[str, str, bool]]:
    """Names in `path` with their kind and whether they are links; empty when the folder was entered before.

    Folders sort as if they ended in `/`, so that the walk as a whole is sorted by relative path.
    """
    status = os.stat(path)
    if (status.st_dev, status.st_ino) in entered:
        return []
    entered.add((status.st_dev, status.st_ino))
    with os.scandir(path) as entries:
        names = [(entry.name, *_kind(entry)) for entry in entries]
    names.sort(key=lambda item: item[0] + "/" if item[1] == "folder" else item[0])
    return names


def _kind(entry: os.DirEntry[str]) -> tuple[str, bool]:
    if entry.is_file(follow_symlinks=False):
        return "file", False
    if entry.is_dir(follow_symlinks=False):
        return "folder", False
    try:
        mode = entry.stat().st_mode
    except OSError:
        return "broken", True
    linked = entry.is_symlink()
    if stat.S_ISDIR(mode):
        return "folder", linked
    return ("file" if stat.S_ISREG(mode) else "special"), linked


def not_a_file() -> ExtractionError:
    """For pipes, sockets and devices, which may never end."""
    return ExtractionError(DocumentProblem.UNREADABLE, "This is a pipe, socket or device, not a file; exclude it.")


def listing_problem(error: OSError) -> ExtractionError:
    """Why a folder could not be listed."""
    if isinstance(error, FileNotFoundError):
        return ExtractionError(
            DocumentProblem.VANISHED,
            "The folder was removed while it was being read; run again if that was not meant.",
        )
    return ExtractionError(
        DocumentProblem.UNREADABLE,
        f"The folder cannot be listed ({error.strerror}); give read permission or exclude it.",
    )
