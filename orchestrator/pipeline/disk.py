"""Disk use and free space of a home."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from orchestrator.core.errors import StorageError
from orchestrator.policy.retention import words
from orchestrator.settings.config import Retention
from orchestrator.settings.home import Home

SERVERS = ("servers", "serve")
STAGE = Home(Path()).replica_stage.name
ROOM_HINT = "`orch gc --dry-run` shows what can go; `min_free` and `max_bytes` of [retention] set the limits"
DATABASE = Home(Path()).database.name


class Use(Struct, frozen=True):
    """Bytes of a home by kind, and `free` bytes of its disk.

    `results` are collected and merged rows, `requests` are lines to send, and `servers` are files of the batch
    servers.
    """

    results: int
    requests: int
    servers: int
    database: int
    other: int
    free: int

    @property
    def total(self) -> int:
        return self.results + self.requests + self.servers + self.database + self.other


def use(home: Home) -> Use:
    """Measure a home's disk use. Files may change or vanish during the measurement. Raises StorageError."""
    sizes = dict.fromkeys(("results", "requests", "servers", "database", "other"), 0)
    for path, size in files(home.root):
        sizes[_kind(path.relative_to(home.root))] += size
    return Use(**sizes, free=_free(home))


def _kind(path: Path) -> str:
    top = path.parts[0]
    if top in SERVERS:
        return "servers"
    if top.startswith(DATABASE):
        return "database"
    if top != "jobs":
        return "other"
    return "requests" if path.name.startswith("requests.jsonl") or ".input.jsonl" in path.name else "results"


def files(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield each regular file below a folder with its size in bytes. Files that vanish meanwhile are left out.

    Hard links made by a replica take no space and are skipped.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != STAGE]
        for name in names:
            path = Path(parent, name)
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path, found.st_size


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 if the folder does not exist."""
    return sum(size for _, size in files(folder))


def shortage(home: Home, terms: Retention) -> str | None:
    """Return why nothing more may be written to a home, or None. Raises StorageError."""
    if (free := _free(home)) < terms.min_free:
        return f"the disk of {home.root} has {words(free)} free, and {words(terms.min_free)} must stay free"
    if terms.max_bytes is not None and (total := size_of(home.root)) > terms.max_bytes:
        return f"{home.root} takes {words(total)}; the limit is {words(terms.max_bytes)}"
    return None


def _free(home: Home) -> int:
    try:
        return shutil.disk_usage(home.root).free
    except OSError as error:
        raise StorageError(f"{home.root} cannot be read: {error.strerror}", hint="set ORCH_HOME elsewhere") from error
