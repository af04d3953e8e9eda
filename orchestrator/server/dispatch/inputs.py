"""The rows of a batch's input file. Each row is read again when it is sent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from orchestrator.core import batch_api, request_lines
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.server.dispatch.body_changes import BodyError
from orchestrator.server.dispatch.plan import InputRows
from orchestrator.server.dispatch.request_header import InputLine, decode_line

BLOCK_BYTES = 128 * 1024
"""Bytes per read if rows are sent in the file's order. A row larger than a quarter of this is read by itself."""


class Unreadable(Exception):
    """Raised if a row, including its id, cannot be read now. The message says why. The file may still be restored."""


class Input:
    """An open input file and its plan. Creating it raises OSError if the file cannot be opened."""

    def __init__(self, path: Path, plan: InputRows) -> None:
        self.plan = plan
        self._fd = os.open(path, os.O_RDONLY)
        self._block, self._block_at = b"", 0
        self._next = 0  # start of the row after the one read last

    def close(self) -> None:
        os.close(self._fd)

    def line(self, index: int) -> InputLine:
        """Return a row's line. Raises Unreadable if a later attempt may succeed, BodyError if the row must not be
        sent.
        """
        plan = self.plan
        if plan.faults and (fault := plan.faults.get(index)) is not None:
            raise BodyError(fault.message, fault.param, fault.code)
        try:
            if plan.long and index in plan.long:
                line = plan.long[index].read(plan.read(self._fd, index))
                if line is not None:
                    return line
            try:
                return decode_line(self._read(index))
            except JSON_ERRORS:
                # The block may come from a file that has been replaced since.
                self._block, raw = b"", plan.read(self._fd, index)
        except OSError as error:
            raise Unreadable(error.strerror) from error
        try:
            return decode_line(raw)
        except JSON_ERRORS:
            said = "has changed since it was checked"
            if request_lines.find_custom_id(raw) is None:
                raise Unreadable(f"it {said}") from None
            raise BodyError(f"Row {index + 1:,} of the input file {said}.", None, "invalid_json_line") from None

    def _read(self, index: int) -> bytes:
        """Return a row, from the last block if possible. A system call costs more than all other work for a row."""
        offsets = self.plan.offsets
        begin, end = offsets[index], offsets[index + 1]
        follows, self._next = begin == self._next, end
        at = self._block_at
        if begin < at or end > at + len(self._block):
            if not follows or end - begin > BLOCK_BYTES // 4:
                return self.plan.read(self._fd, index)
            self._block, self._block_at, at = os.pread(self._fd, BLOCK_BYTES, begin), begin, begin
        return self._block[begin - at : end - at]

    def custom_id(self, index: int) -> msgspec.Raw:
        """Return a row's id as JSON, or null if it cannot be read."""
        with contextlib.suppress(OSError):
            return request_lines.find_custom_id(self.plan.read(self._fd, index)) or batch_api.NO_BODY
        return batch_api.NO_BODY
