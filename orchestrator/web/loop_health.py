"""How the engine's loop is, in memory that the engine shares with the process of its pages."""

from __future__ import annotations

import mmap
import struct
import tempfile
import time
from typing import BinaryIO

FORM = struct.Struct("=Qd")


class LoopHealth:
    """Rounds of the loop, and when the last one ended by the machine's monotonic clock, which all processes share.

    The engine tells it after each round, which waits for nobody. `file` is a descriptor of what `shared` gives.
    """

    def __init__(self, file: int) -> None:
        self._told = mmap.mmap(file, FORM.size)

    def beat(self) -> None:
        """A round is over."""
        FORM.pack_into(self._told, 0, self.rounds + 1, time.monotonic())

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        found: int = FORM.unpack_from(self._told)[0]
        return found

    @property
    def silent_seconds(self) -> float | None:
        """Since when no round ended; None before the first."""
        rounds, last = FORM.unpack_from(self._told)
        return time.monotonic() - last if rounds else None


def shared() -> BinaryIO:
    """A file of no name that a LoopHealth of each process may have in common. Raises OSError."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    file.truncate(FORM.size)
    return file
