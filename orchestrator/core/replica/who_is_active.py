"""Numbered heads, each with the active process and the current manifest. No number can be written twice.

Every commit, renewal, take-over and release writes the head with the next number. If another process has written that
number first, this process is superseded, even before it notices.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Lock

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import StorageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.replica.storage import Missing, Storage

FOLDER = "heads"
DIGITS = 12
KEPT = 5
"""Number of older heads to keep, so that a reader still finds a head while new heads are written."""
HOLD_SECONDS = 8.0
"""Seconds, from the start of its last write, for which a process may consider itself active."""
LAPSE_SECONDS = 10.0
"""Seconds without a new head until another process may take over; above HOLD_SECONDS, since clocks differ."""


class ReplicaHead(msgspec.Struct, frozen=True, kw_only=True):
    """A record of which process is active. `replica` and `folder` are random ids of the replica and of that process's
    folder.

    `holder` names the active process in messages. `nonce` distinguishes attempts to write a head.
    """

    number: int
    generation: int
    replica: str
    folder: str
    holder: str
    manifest: str
    """Name of the manifest; empty before the first manifest."""
    host: str = ""
    """Host name of the holder's machine."""
    is_released: bool = False
    nonce: str = ""


class Superseded(StorageError):
    """Another process is active."""

    kind = "superseded"

    def __init__(self, head: ReplicaHead) -> None:
        super().__init__(
            f"{head.holder} has taken over as generation {head.generation}; nothing more is done here",
            hint="start it again: it stands by",
        )


_decode = json_decoder(ReplicaHead).decode


def seconds() -> float:
    """Return the seconds of a monotonic clock that also counts the machine's sleep, if the system has such a clock.

    If sleep did not count, an old observation would seem recent afterwards.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeadLog:
    """The heads of a replica. Every method may raise StorageError."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def latest(self) -> ReplicaHead | None:
        """Return the newest head, or None if no head exists."""
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            try:
                return self._read(self._storage.get(_name(max(numbers))))
            except Missing:
                continue  # removed meanwhile, since there are newer heads

    def write(self, wanted: ReplicaHead) -> ReplicaHead:
        """Write a head and return the stored head: `wanted`, or an earlier attempt of this process with that number.

        Raises Superseded if another process has written that number, or a higher number exists.
        """
        try:
            there = self._read(self._storage.create(_name(wanted.number), msgspec.json.encode(wanted)))
        except Missing:
            there = None
        # Old numbers become free again: only the list of all heads shows that this one is the newest.
        numbers = self._numbers()
        is_ours = there is not None and (there.generation, there.folder) == (wanted.generation, wanted.folder)
        if there is None or not is_ours or max(numbers, default=0) > wanted.number:
            newest = self.latest()
            assert newest is not None
            raise Superseded(newest)
        if wanted.number > 1 and wanted.number - 1 not in numbers:
            raise StorageError(
                f"the replica {self._storage.url} does not hold what was written there before",
                hint="is it the right folder, and mounted?",
            )
        self._storage.remove(_name(number) for number in numbers if number < wanted.number - KEPT)
        return there

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._storage.names(FOLDER) if name.isdecimal()]

    def _read(self, data: bytes) -> ReplicaHead:
        try:
            return _decode(data)
        except JSON_ERRORS as error:
            raise StorageError(f"a head of the replica {self._storage.url} cannot be read: {error}") from error


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{DIGITS}d}"


class Generation:
    """The period in which this process is active: from its first head until it stops writing further heads.

    Any thread may call the methods.
    """

    def __init__(self, heads: HeadLog, head: ReplicaHead, began: float, clock: Callable[[], float] = seconds) -> None:
        """Start a generation with the head that took over. `began` is when the write of this head began."""
        self._heads = heads
        self._clock = clock
        self._lock = Lock()
        self.head = head
        self._written = began

    @property
    def number(self) -> int:
        return self.head.generation

    @property
    def age(self) -> float:
        """Seconds since the start of the last successful write."""
        return self._clock() - self._written

    @property
    def is_held(self) -> bool:
        """True if no other process can have taken over yet."""
        return self.age < HOLD_SECONDS

    def write(self, manifest: str | None = None, *, is_released: bool = False) -> None:
        """Commit a manifest (None: keep the current one), renew, or release. Raises Superseded or StorageError.

        After a StorageError other than Superseded, the write may still have happened. The next write finds out.
        """
        with self._lock:
            while True:
                began, before = self._clock(), self.head
                wanted = msgspec.structs.replace(
                    before,
                    number=before.number + 1,
                    manifest=before.manifest if manifest is None else manifest,
                    is_released=is_released,
                    nonce=os.urandom(4).hex(),
                )
                self.head = self._heads.write(wanted)
                if self.head == wanted:
                    self._written = began
                    return

    def renew(self, every: float) -> None:
        """Write a head if the last write began at least `every` seconds ago. Raises the same errors as `write`."""
        if self.age >= every:
            self.write()
