"""The files below a folder, sorted by relative path. Only the names of the open folders are in memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from orchestrator.core.errors import InputError
from orchestrator.documents.globs import Globs, State
from orchestrator.documents.ignored import IgnoredReason, never_document
from orchestrator.documents.safe_open import is_inside, is_system, open_folder
from orchestrator.documents.types import DocumentProblem, ExtractionError, RemoteObject, unreadable


class FoundFile(NamedTuple):
    """A file to read. `relative` is its path below the source, with `/`; its name if the file itself is the
    source.
    """

    path: str
    relative: str
    remote: RemoteObject | None = None  # if set, `path` is inside this object's storage


class Unlisted(NamedTuple):
    """A folder that cannot be listed, or a dead link, with the reason."""

    relative: str
    error: ExtractionError


class Skipped(NamedTuple):
    """An entry that passes the patterns but is not a document."""

    relative: str
    reason: IgnoredReason


class WalkedFolder(NamedTuple):
    """A folder below the root, with the state of the patterns in it."""

    path: str
    prefix: str  # "" for the root, otherwise the relative path and "/"
    include: State
    exclude: State


class Walk:
    """Iterates over `FoundFile | Unlisted | Skipped` below `root`; may be iterated more than once.

    Iteration raises InputError if the root cannot be listed. Links out of the root are followed only with
    `follow_links`, and never into the system's folders. A link to a folder inside the root is followed only if the
    folder is hidden or a pattern names the link. Every real folder is entered once. A link to a file is ignored if
    the walk finds the file anyway.
    """

    def __init__(
        self, root: str, include: Globs, exclude: Globs, is_wanted: Callable[[str], bool], *, follow_links: bool
    ) -> None:
        """`is_wanted` decides by name if a file that passes the patterns is read."""
        self._root = root
        self._real_root = os.path.realpath(root)
        self._include = include
        self._exclude = exclude
        self._is_wanted = is_wanted
        self.within = None if follow_links else self._real_root

    def __iter__(self) -> Iterator[FoundFile | Unlisted | Skipped]:
        entered: set[tuple[int, int]] = set()
        root = WalkedFolder(self._root, "", self._include.start, self._exclude.start)
        try:
            pending = [iter(self._names(root.path, entered))]
        except OSError as error:
            raise InputError(
                f"The folder cannot be listed ({error.strerror}); give this user read permission.", file=self._root
            ) from error
        except ExtractionError as error:
            raise InputError(error.message, file=self._root) from error
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
                if (found := self._file(folder, name, kind, linked)) is not None:
                    yield found
                continue
            inner = self._inner(folder, name)
            if inner is None:
                continue
            if linked and self._leads_away(inner.path):
                yield Skipped(folder.prefix + name, IgnoredReason.LINK)
                continue
            if linked and not self._include.names(folder.include, name) and self._leads_back(inner.path):
                continue
            try:
                pending.append(iter(self._names(inner.path, entered)))
                folders.append(inner)
            except ExtractionError:
                yield Skipped(folder.prefix + name, IgnoredReason.LINK)
            except OSError as error:
                yield Unlisted(folder.prefix + name, listing_problem(error))

    def _file(
        self, folder: WalkedFolder, name: str, kind: str, linked: bool
    ) -> FoundFile | Unlisted | Skipped | None:
        if not self._include.accepts(folder.include, name) or self._exclude.accepts(folder.exclude, name):
            return None
        found = FoundFile(f"{folder.path}/{name}", folder.prefix + name)
        reason = self._reason(found, name, kind, linked)
        if reason is not None:
            return Skipped(found.relative, reason)
        if kind == "file":
            return None if linked and self._found_anyway(found.path) else found
        message = "The link leads nowhere; repair it or exclude it."
        return Unlisted(found.relative, unreadable(message))

    def _reason(self, found: FoundFile, name: str, kind: str, linked: bool) -> IgnoredReason | None:
        if (reason := never_document(name)) is not None:
            return reason
        if kind == "special":
            return IgnoredReason.SPECIAL
        if not self._is_wanted(name):
            return IgnoredReason.KIND
        return IgnoredReason.LINK if linked and self._leads_away(found.path) else None

    def _inner(self, folder: WalkedFolder, name: str) -> WalkedFolder | None:
        include = self._include.descend(folder.include, name)
        if not include or self._exclude.accepts(folder.exclude, name):
            return None
        exclude = self._exclude.descend(folder.exclude, name)
        return WalkedFolder(f"{folder.path}/{name}", f"{folder.prefix}{name}/", include, exclude)

    def _leads_away(self, path: str) -> bool:
        target = os.path.realpath(path)
        return is_system(target) or (self.within is not None and not is_inside(target, self.within))

    def _leads_back(self, path: str) -> bool:
        """Return True if a linked folder is reached under its own name anyway, or contains the root."""
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

    def _names(self, path: str, entered: set[tuple[int, int]]) -> list[tuple[str, str, bool]]:
        """Return the names in a folder, each with its kind and True for a link; empty if the folder was entered
        before.

        Folders sort as if they ended in `/`, so that the whole walk is sorted by relative path. Raises OSError, and
        ExtractionError if the folder must not be read.
        """
        fd = open_folder(path, self.within)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) in entered:
                return []
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(fd) as entries:
                names = [(entry.name, *_kind(entry)) for entry in entries]
        finally:
            os.close(fd)
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


def listing_problem(error: OSError) -> ExtractionError:
    if isinstance(error, FileNotFoundError):
        return ExtractionError(
            DocumentProblem.VANISHED,
            "The folder was removed while it was being read; run again if that was a mistake.",
        )
    return unreadable(f"The folder cannot be listed ({error.strerror}); give read permission or exclude it.")
