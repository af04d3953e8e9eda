"""The documents of an archive or mail, also where a reader dies of a part of it: that one alone is lost.

What a worker gave before it died may have been lost with it, so from the last part that is known to be complete they
are read again one by one, each in a call of its own, until the one is met that it dies of; the rest goes on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from orchestrator.core.bounded.process import Tripped
from orchestrator.documents.confined import from_plain, unreadable
from orchestrator.documents.ignored import Ignored, IgnoredReason
from orchestrator.documents.types import Document, ExtractionError, UnreadableDocument

MOST_TRIPS = 10
"""After so many parts that a reader dies of, the rest of the file is not read."""
Values = Iterator[list[tuple[Any, ...]]]
Read = Callable[[int, int | None], Values]
"""Reads the parts from one index up to another, in a worker."""


class PartByPart:
    """One file's parts. `keys` gives their keys, `told` says what is wrong where a worker died."""

    def __init__(
        self, key: str, read: Read, keys: Callable[[], Iterator[str]], told: Callable[[Tripped], ExtractionError],
        ignored: Ignored | None,
    ) -> None:  # fmt: skip
        self._key = key
        self._read = read
        self._keys = keys
        self._told = told
        self._ignored = ignored
        self._at = 0  # the part that is being read
        self._since = 0  # how many values of it have come

    def documents(self, values: Values, first: int = 0) -> Iterator[Document | UnreadableDocument]:
        """What the parts give, from the document with the index `first` on; `values` are those of a call for all."""
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
            if culprit is None:  # it is not a part that it dies of
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
        """What a worker gave, without the first `skip` values of the first part. Raises Tripped."""
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
                    self._pass_over(*value)
                else:
                    yield from_plain(value)

    def _pass_over(self, key: str, reason: str, ending: str) -> None:
        if self._ignored is not None:
            self._ignored.add(IgnoredReason(reason), key, ending)
