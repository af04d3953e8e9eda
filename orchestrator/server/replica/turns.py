"""Waiting until this server is the active one, and taking over: its folder is then as the replica, or ahead."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.core.atomic import durable
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.wire import JSON_ERRORS
from orchestrator.server.database import FILE_NAME
from orchestrator.server.replica.heads import LAPSE_SECONDS, Generation, HeadLog, ReplicaHead, Superseded, seconds
from orchestrator.server.replica.manifest import MANIFESTS, OBJECTS, Manifest, read_manifest
from orchestrator.server.replica.restore import restore
from orchestrator.server.replica.storage import OPTION, Storage, open_storage

MARK = "replica.json"
LOOK_SECONDS = 1.0
RENEW_SECONDS = 2.0

Tell = Callable[[str], None]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder knows of its replica: its own random name there, and the last generation that it had whole."""

    replica: str
    folder: str
    generation: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica whose active server is this one."""

    storage: Storage
    generation: Generation
    manifest: Manifest


_decode = msgspec.json.Decoder(Mark).decode


def take_turn(
    url: str, root: Path, is_over: Callable[[], bool], tell: Tell, lapse: float = LAPSE_SECONDS
) -> Replica | None:
    """Stand by until no other server is active, then be the active one; None where `is_over` comes first.

    A server counts as active until so many seconds have brought no new head. The caller has the folder's lock. Raises
    UsageError, StorageError.
    """
    storage = open_storage(url)
    heads, mark = HeadLog(storage), _read_mark(root)
    _require_own(root, mark, heads.latest(), url)
    while (turn := _wait(heads, mark, is_over, tell, lapse)) is not None:
        try:
            return _take(storage, heads, turn.head, root, mark, tell)
        except Superseded as error:
            tell(str(error.message))
    return None


@dataclass(frozen=True, slots=True)
class _Turn:
    head: ReplicaHead | None


def _wait(heads: HeadLog, mark: Mark, is_over: Callable[[], bool], tell: Tell, lapse: float) -> _Turn | None:
    """Wait until nobody is active; the head that is the last one then."""
    seen, since, told = -1, seconds(), 0
    while not is_over():
        try:
            head = heads.latest()
        except StorageError as error:
            # Who is active could not write either meanwhile: its ten seconds begin when both can again.
            tell(f"{error.message}; trying again")
            seen = -1
        else:
            if head is None or head.is_released or head.folder == mark.folder:
                return _Turn(head)
            if head.number != seen:
                seen, since = head.number, seconds()
            if seconds() - since >= lapse:
                tell(f"{head.holder} has not been heard of for {lapse:g} s; taking over")
                return _Turn(head)
            if head.generation != told:
                tell(f"standing by: {head.holder} is active, generation {head.generation}")
                told = head.generation
        time.sleep(LOOK_SECONDS)
    return None


def _take(storage: Storage, heads: HeadLog, last: ReplicaHead | None, root: Path, mark: Mark, tell: Tell) -> Replica:
    """Write the head that makes this server the active one, and bring its folder to where the last one was.

    Raises Superseded where another server was first.
    """
    is_ahead = last is None or (mark.replica, mark.generation) == (last.replica, last.generation)
    began = seconds()
    head = ReplicaHead(
        number=1 if last is None else last.number + 1,
        generation=1 if last is None else last.generation + 1,
        replica=os.urandom(8).hex() if last is None else last.replica,
        folder=mark.folder,
        holder=f"{socket.gethostname()} (process {os.getpid()})",
        manifest="" if last is None else last.manifest,
        nonce=os.urandom(4).hex(),
    )
    generation = Generation(heads, heads.write(head), began)
    manifest = read_manifest(storage, head.manifest)
    if not is_ahead:
        _write_mark(root, Mark(replica=head.replica, folder=mark.folder, generation=0))
        restore(storage, manifest, root, lambda: generation.renew(RENEW_SECONDS))
    _write_mark(root, Mark(replica=head.replica, folder=mark.folder, generation=head.generation))
    generation.renew(RENEW_SECONDS)
    _remove_unnamed(storage, manifest, generation)
    source = "from this folder" if is_ahead else f"from {storage.url}"
    tell(f"active, generation {head.generation}, {source}")
    return Replica(storage, generation, manifest)


def _remove_unnamed(storage: Storage, manifest: Manifest, generation: Generation) -> None:
    """Remove what earlier generations wrote and no manifest names: they cannot name it any more either."""
    needed = {generation.head.manifest, *manifest.names()}
    for folder in (OBJECTS, MANIFESTS):
        names = [f"{folder}/{name}" for name in storage.names(folder) if _generation_of(name) < generation.number]
        storage.remove(name for name in names if name not in needed)
        generation.renew(RENEW_SECONDS)


def new_name(folder: str, generation: int) -> str:
    """A name that no other object has, and that says who made it."""
    return f"{folder}/{generation:06d}-{os.urandom(12).hex()}"


def _generation_of(name: str) -> int:
    number, _, _ = name.partition("-")
    return int(number) if number.isdecimal() else 0


def _require_own(root: Path, mark: Mark, head: ReplicaHead | None, url: str) -> None:
    """Raises UsageError where the folder has a state that is not of this replica: it would be lost."""
    if head is not None and mark.replica != head.replica and (root / FILE_NAME).exists():
        raise UsageError(
            f"{root} has files and batches of its own, and {OPTION} {url} has others",
            hint="name an empty folder with --dir, or another replica",
        )


def _read_mark(root: Path) -> Mark:
    """What the folder knows; a new name where it knows nothing. Raises StorageError."""
    try:
        return _decode((root / MARK).read_bytes())
    except FileNotFoundError:
        return Mark(replica="", folder=os.urandom(8).hex(), generation=0)
    except (OSError, *JSON_ERRORS) as error:
        raise StorageError(
            f"{root / MARK} cannot be read: {error}", hint="name an empty folder with --dir"
        ) from error


def _write_mark(root: Path, mark: Mark) -> None:
    try:
        with durable(root / MARK) as file:
            file.write(msgspec.json.encode(mark))
    except OSError as error:
        raise StorageError(f"{root / MARK} cannot be written: {error.strerror}") from error
