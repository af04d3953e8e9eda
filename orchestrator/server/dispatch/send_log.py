"""The log of rows sent to an upstream that bills every request, so that a kill loses no billed row.

Before a row is sent, its number is appended to a file as four bytes, in a plain write. A killed process loses no
entry. A power cut may lose the last seconds, because the file is not synced. A row is in doubt once for each time it
was sent and got no answer. That request may have been carried out and billed.

An answer that is not a result (a 429, a 500) is logged too, because it removes the doubt. A result is not logged: its
line removes the doubt once it is durable. Until then, the row is in doubt.
"""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

FILE_NAME = "sent"
MOST = 255
"""Maximum number of doubts to count for a row."""
_ANSWERED = 1 << 31
_RECORD = array("I").itemsize
_READ_BYTES = _RECORD << 16


def read_doubts(path: Path, rows: int) -> bytearray:
    """Return how often each row is in doubt, from the log at `path`. All counts are 0 without a log. Raises
    OSError.
    """
    doubts = bytearray(rows)
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            for record in array("I", data[: len(data) - len(data) % _RECORD]):
                row = (record & ~_ANSWERED) - 1
                # Rows count from 1: a power cut may leave zeros in place of a write, and these must not name a row.
                if not 0 <= row < rows:
                    continue
                if record & _ANSWERED:
                    doubts[row] -= doubts[row] > 0
                else:
                    doubts[row] += doubts[row] < MOST
    return doubts


class SendLog:
    """A batch's send log. `doubts` comes from `read_doubts`. Creating it raises OSError if the log cannot be
    opened.
    """

    def __init__(self, path: Path, doubts: bytearray) -> None:
        self._doubts = doubts
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        size = os.fstat(self._fd).st_size
        self._end = size - size % _RECORD

    def close(self) -> None:
        os.close(self._fd)

    def doubts(self, row: int) -> int:
        """Return how many sends of a row have no known answer, including sends in flight."""
        return self._doubts[row]

    def leave(self, rows: Sequence[int]) -> None:
        """Log that these rows are about to be sent. If this raises OSError, they must not be sent."""
        self._append(rows, 0)
        for row in rows:
            self._doubts[row] += self._doubts[row] < MOST

    def take_back(self, rows: Sequence[int]) -> None:
        """Log that these rows were never sent, or were answered without a result."""
        for row in rows:
            self.answered(row)
        with contextlib.suppress(OSError):  # the disk is full: after a kill the row counts as in doubt
            self._append(rows, _ANSWERED)

    def answered(self, row: int) -> None:
        """Record that a row has its result, which is about to be written."""
        self._doubts[row] -= self._doubts[row] > 0

    def _append(self, rows: Sequence[int], mark: int) -> None:
        data = array("I", [(row + 1) | mark for row in rows]).tobytes()
        if os.pwrite(self._fd, data, self._end) < len(data):
            os.ftruncate(self._fd, self._end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end += len(data)
