"""Standing by until no other process is active, and taking over.

After a take-over, the folder equals the replica or is ahead of it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.replica.contents import MARK, ReplicaLayout
from orchestrator.core.replica.manifest import MANIFESTS, OBJECTS, Manifest
from orchestrator.core.replica.restore import Ahead, CopyStopped, FolderCopy
from orchestrator.core.replica.storage import OPTION, DamagedReplica, Storage, open_storage
from orchestrator.core.replica.who_is_active import (
    LAPSE_SECONDS,
    Generation,
    HeadLog,
    ReplicaHead,
    Superseded,
    seconds,
)

LOOK_SECONDS = 1.0
RENEW_SECONDS = 2.0

Tell = Callable[[str], None]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A folder's record of how much of the replica it holds.

    The mark has the folder's random name at the replica, and the last generation that the folder held completely. It
    also lists the manifests that may be the newest. After a roll-back of the folder, its mark lists only outdated
    manifests.
    """

    replica: str
    folder: str
    generation: int
    manifests: Sequence[str] = ()


class MarkedFolder:
    """A folder with its mark, which records how much of the replica it holds."""

    def __init__(self, root: Path, layout: ReplicaLayout) -> None:
        self.root = root
        self.layout = layout
        self.mark = _read_mark(root, layout)

    def begin(self, replica: str, generation: int, manifest: str = "") -> None:
        """Record the replica, and the generation that the folder holds completely (0 if none). Raises
        StorageError.
        """
        self._write(Mark(replica=replica, folder=self.mark.folder, generation=generation, manifests=(manifest,)))

    def note(self, *manifests: str) -> None:
        """Record the manifests that may be the last committed manifest. Raises StorageError."""
        self._write(msgspec.structs.replace(self.mark, manifests=manifests))

    def is_ahead_of(self, head: ReplicaHead) -> bool:
        """True if the folder has all data committed up to this head, and perhaps more."""
        mark = self.mark
        knows = not mark.manifests or head.manifest in mark.manifests
        return (mark.replica, mark.generation) == (head.replica, head.generation) and knows

    def _write(self, mark: Mark) -> None:
        try:
            with durable(self.root / MARK) as file:
                file.write(msgspec.json.encode(mark))
        except OSError as error:
            raise StorageError(f"{self.root / MARK} cannot be written: {error.strerror}") from error
        self.mark = mark


class Replica(Struct, frozen=True):
    """A replica for which this process is active. `is_restored` is true if the folder was rebuilt from the
    replica.
    """

    storage: Storage
    generation: Generation
    manifest: Manifest
    folder: MarkedFolder
    is_restored: bool = False


_decode = json_decoder(Mark).decode


def take_turn(
    url: str, root: Path, layout: ReplicaLayout, is_over: Callable[[], bool], tell: Tell, lapse: float = LAPSE_SECONDS
) -> Replica | None:
    """Stand by until no other process is active, then become active. Return None if `is_over` turns true first.

    A process counts as active until no new head has appeared for `lapse` seconds. The caller holds the folder's lock.
    Raises UsageError or StorageError.
    """
    turns = _Turns(open_storage(url), root, layout, is_over, tell, lapse)
    told = ""
    try:
        while True:
            last = turns.wait()
            try:
                return turns.take(last)
            except Superseded as error:
                tell(error.message)
            except _CannotWrite as error:
                if error.message != told:
                    tell(f"{error.message}; trying again")
                told = error.message
                time.sleep(LOOK_SECONDS)
    except CopyStopped:
        return None


class _CannotWrite(StorageError):
    """The replica cannot be written at a take-over. The process waits and tries again."""


class _Turns:
    def __init__(
        self,
        storage: Storage,
        root: Path,
        layout: ReplicaLayout,
        is_over: Callable[[], bool],
        tell: Tell,
        lapse: float,
    ) -> None:
        self._storage = storage
        self._heads = HeadLog(storage)
        self._folder = MarkedFolder(root, layout)
        self._is_over = is_over
        self._tell = tell
        self._lapse = lapse
        self._copy = FolderCopy(storage, root, layout)
        # Checked before the first fetch, while the folder has only its own state.
        self._has_state = layout.has_state(root)

    def wait(self) -> ReplicaHead | None:
        """Wait until no process is active; return the newest head. Raises CopyStopped if a stop comes first."""
        ahead = Ahead(self._copy)
        try:
            return self._wait(ahead)
        finally:
            ahead.stop()

    def _wait(self, ahead: Ahead) -> ReplicaHead | None:
        seen, since, told = 0, seconds(), 0
        while not self._is_over():
            try:
                head = self._heads.latest()
            except StorageError as error:
                # The active process could not write either: its ten seconds start anew once both can write.
                if seen >= 0:
                    self._tell(f"{error.message}; trying again")
                seen = -1
            else:
                if head is None:
                    self._require_new()
                    return None
                if self._is_mine(head):
                    return head
                if head.number != seen:
                    seen, since = head.number, seconds()
                if seconds() - since >= self._lapse:
                    self._tell(f"{head.holder} has not been heard from for {self._lapse:g} s; taking over")
                    return head
                if head.generation != told:
                    self._note_standby(head)
                    self._tell(f"standing by: {head.holder} is active, generation {head.generation}")
                    told = head.generation
                ahead.look(head.manifest)
            time.sleep(LOOK_SECONDS)
        raise CopyStopped

    def _note_standby(self, head: ReplicaHead) -> None:
        """Mark this folder as a copy, whose state belongs to another folder."""
        if self._folder.mark.replica != head.replica:
            self._folder.begin(head.replica, 0)

    def _require_new(self) -> None:
        """Raise UsageError if the folder belongs to a replica: this replica is empty, so it was lost or is at another
        URL.
        """
        root = self._folder.root
        if self._folder.mark.replica:
            raise UsageError(
                f"{OPTION} {self._storage.url} is empty, and {root} belongs to a replica that is not",
                hint=f"is it mounted, and the URL right? To begin another one with this folder, remove {root / MARK}",
            )

    def _is_mine(self, head: ReplicaHead) -> bool:
        """True if the head was released, or written for this folder on this machine.

        Raises UsageError if the folder's own state would be lost.
        """
        folder = self._folder
        if folder.mark.replica != head.replica and self._has_state:
            raise UsageError(
                f"{folder.root} has {folder.layout.holds} of its own, and {OPTION} {self._storage.url} has others",
                hint=f"{folder.layout.elsewhere}, or another replica",
            )
        # A cloned machine has the same folder name, but another host name: it waits for the original.
        is_same = head.folder == folder.mark.folder and head.host in ("", socket.gethostname())
        return head.is_released or is_same

    def take(self, last: ReplicaHead | None) -> Replica:
        """Write the head that makes this process active, and bring its folder to the last committed state.

        Raises Superseded if another process was faster, CopyStopped if a stop comes before the folder is complete.
        """
        is_ahead = last is None or self._folder.is_ahead_of(last)
        began = seconds()
        head = ReplicaHead(
            number=1 if last is None else last.number + 1,
            generation=1 if last is None else last.generation + 1,
            replica=os.urandom(8).hex() if last is None else last.replica,
            folder=self._folder.mark.folder,
            host=socket.gethostname(),
            holder=f"{socket.gethostname()} (process {os.getpid()})",
            manifest="" if last is None else last.manifest,
            nonce=os.urandom(4).hex(),
        )
        try:
            written = self._heads.write(head)
        except (Superseded, DamagedReplica):
            raise
        except StorageError as error:
            raise _CannotWrite(error.message, hint=error.hint) from error
        generation = Generation(self._heads, written, began)
        if not is_ahead:
            self._folder.begin(head.replica, 0)
        manifest = self._restored(generation, is_ahead=is_ahead)
        self._folder.begin(head.replica, head.generation, head.manifest)
        self._make_room(manifest, generation)
        source = "from this folder" if is_ahead else f"from {self._storage.url}"
        self._tell(f"active, generation {head.generation}, {source}")
        return Replica(self._storage, generation, manifest, self._folder, is_restored=not is_ahead)

    def _make_room(self, manifest: Manifest, generation: Generation) -> None:
        """Remove objects that the manifest does not name. If the storage fails, report the error and continue."""
        try:
            _remove_unnamed(self._storage, manifest, generation)
            generation.renew(RENEW_SECONDS)
        except (Superseded, DamagedReplica):
            raise
        except StorageError as error:
            self._tell(f"{error.message}; continuing")

    def _restored(self, generation: Generation, *, is_ahead: bool) -> Manifest:
        """Update the folder, unless it is ahead, and return the current manifest. Retries temporary failures."""
        told = ""
        while True:
            try:
                self._step(generation)
                manifest = self._copy.read(generation.head.manifest)
                if not is_ahead:
                    self._copy.finish(manifest, lambda: self._step(generation))
                return manifest
            except (Superseded, DamagedReplica):
                raise
            except StorageError as error:
                if error.message != told:
                    self._tell(f"{error.message}; trying again")
                told = error.message
                time.sleep(LOOK_SECONDS)
            except OSError as error:
                raise StorageError(f"{self._folder.root} cannot be written: {error.strerror}") from error

    def _step(self, generation: Generation) -> None:
        if self._is_over():
            raise CopyStopped
        generation.renew(RENEW_SECONDS)


def _remove_unnamed(storage: Storage, manifest: Manifest, generation: Generation) -> None:
    """Remove objects of earlier generations that the manifest does not name: no later manifest can name them."""
    needed = {generation.head.manifest, *manifest.names()}
    for folder in (OBJECTS, MANIFESTS):
        names = [f"{folder}/{name}" for name in storage.names(folder) if _generation_of(name) < generation.number]
        storage.remove(name for name in names if name not in needed)
        generation.renew(RENEW_SECONDS)


def new_name(folder: str, generation: int) -> str:
    """Return a unique object name that contains the number of the generation that writes it."""
    return f"{folder}/{generation:06d}-{os.urandom(12).hex()}"


def _generation_of(name: str) -> int:
    number, _, _ = name.partition("-")
    return int(number) if number.isdecimal() else 0


def _read_mark(root: Path, layout: ReplicaLayout) -> Mark:
    """Read the folder's mark. Return a new mark with a random name if the folder has no mark. Raises StorageError."""
    try:
        return _decode((root / MARK).read_bytes())
    except FileNotFoundError:
        return Mark(replica="", folder=os.urandom(8).hex(), generation=0)
    except (OSError, *JSON_ERRORS) as error:
        raise StorageError(f"{root / MARK} cannot be read: {error}", hint=layout.elsewhere) from error
