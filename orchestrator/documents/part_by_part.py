"""The documents of an archive or mail. If a part crashes the reader, only that part is lost.

A dead worker's last results may be lost, too. Reading therefore resumes at the last part that may be incomplete,
with one part per call, until the crashing part is found. Then one call reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from orchestrator.core.bounded.process import Tripped
from orchestrator.documents.ignored import Ignored, IgnoredReason
from orchestrator.documents.types import Document, ExtractionError, UnreadableDocument
from orchestrator.documents.worker_functions import from_plain, unreadable

MOST_TRIPS = 10
"""Number of crashing parts after which the rest of the file is not read."""
Values = Iterator[list[tuple[Any, ...]]]
Read = Callable[[int, int | None], Values]
"""Reads the parts from one index up to another, in a worker."""
Convert = Callable[[str, str, bytes, dict[str, Any]], Iterator[Document | UnreadableDocument]]
"""Converts a part with LibreOffice and reads it, given its key, path, bytes and fields."""


class PartByPart:
    """Reads one file's parts.

    `keys` returns the parts' keys, and `told` returns the error for a dead worker. `convert` yields the documents of
    a part that needs LibreOffice.
    """

    def __init__(
        self, key: str, read: Read, keys: Callable[[], Iterator[str]], told: Callable[[Tripped], ExtractionError],
        convert: Convert, ignored: Ignored | None,
    ) -> None:  # fmt: skip
        self._key = key
        self._read = read
        self._keys = keys
        self._told = told
        self._convert = convert
        self._ignored = ignored
        self._at = 0  # index of the current part
        self._since = 0  # values received of the current part

    def documents(self, values: Values, first: int = 0) -> Iterator[Document | UnreadableDocument]:
        """Yield the parts' documents, without the first `first` documents. `values` are from a call for all parts."""
        return islice(self._documents(values), first, None)

    def _documents(self, values: Values) -> Iterator[Document | UnreadableDocument]:
        for _ in range(MOST_TRIPS):
            try:
                yield from self._taken(values, 0)
                return
            except Tripped as tripped:
                last = tripped
            culprit = None
            for index, key in enumerate(self._part_keys()):
                if index < self._at:
                    continue
                skip = self._since if index == self._at else 0
                try:
                    yield from self._taken(self._read(index, index + 1), skip)
                except Tripped as tripped:
                    culprit = index
                    yield unreadable(key, self._told(tripped))
                    break
            if culprit is None:  # no single part crashes the reader
                break
            self._at, self._since = culprit + 1, 0
            values = self._read(culprit + 1, None)
        yield unreadable(self._key, self._told(last))

    def _part_keys(self) -> Iterator[str]:
        try:
            yield from self._keys()
        except Tripped:
            return

    def _taken(self, values: Values, skip: int) -> Iterator[Document | UnreadableDocument]:
        """Yield a worker's documents, without the first `skip` values of the first part. Raises Tripped."""
        for some in values:
            for value in some:
                if len(value) == 1:
                    if value[0] != self._at:
                        self._at, self._since, skip = value[0], 0, 0
                    continue
                if skip:
                    skip -= 1
                    continue
                self._since += 1
                if len(value) == 3:
                    key, reason, ending = value
                    if self._ignored is not None:
                        self._ignored.add(IgnoredReason(reason), key, ending)
                elif len(value) == 4:
                    yield from self._convert(*value)
                else:
                    yield from_plain(value)
