"""The order in which a batch's rows are sent. Rows that share a long prefix are sent together, across the whole
batch.

Each row is represented by hashes of its text at growing lengths. Sorted by these hashes, rows with a common prefix
are neighbours, and shared prefixes form a tree. Rows are sent in a walk over this tree. Ties follow the file's order,
so results come roughly in that order too.

Memory is bounded: sorted records go to a temporary file, and arrays hold the tree.
"""

from __future__ import annotations

import marshal
import struct
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, count, pairwise
from operator import eq
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from msgspec import Struct, field

from orchestrator.server.dispatch.prefix_tree import Tree

LENGTHS = (256, 512, *(int(1024 * 2 ** (step / 2)) for step in range(15)))
"""Prefix lengths in bytes: 256, 512, 1024, 1448, 2048 ... 128 KiB.

From 1024 on, there are two steps per doubling. So a document after a long system prompt is still recognized as
shared.
"""
MIN_GAIN = 0.03
"""Minimum share of the text that rows must have in common. Below this share, reordering gains nothing, and rows keep
the file's order.
"""
FREE_CACHE = 0.8
"""Share of an upstream's cache used for shared prefixes. The rest holds the parts that rows do not share."""
LONG = 4
"""A row is long if its token limit is at least this many times the median."""
FEW = 1 / 8
"""Long rows go first if they are at most this share of the rows."""
RUN_ROWS = 65_536
BLOCK_ROWS = 1_024
UNSHARED = 64
"""Group size of rows that share no prefix. Rows are assigned to upstreams in groups."""

_SPANS = [
    tuple(slice(start, end) for start, end in pairwise((0, *LENGTHS[:levels]))) for levels in range(len(LENGTHS) + 1)
]
_packs = [struct.Struct(f">{levels + 1}I").pack for levels in range(len(LENGTHS) + 1)]
_UNKNOWN = 63


class RowOrder(Struct, frozen=True):
    """The order in which rows are sent, and the reason for it.

    `rows` has the row indexes in sending order, or is None for the file's order. `bounds` are positions in this
    order. Group i is the rows `bounds[i]:bounds[i + 1]`, which have a common prefix. `hashes[i]` identifies the
    prefix, and is the same in every batch. Without groups, prefixes do not affect the choice of upstream.
    `predicted_hit` is the minimum share of the text, from 0 to 1, that prefix caches save in this order.
    """

    reason: str
    predicted_hit: float = 0.0
    rows: array[int] | None = None
    bounds: array[int] = field(default_factory=lambda: array("I"))
    hashes: array[int] = field(default_factory=lambda: array("I"))


class Sorter:
    """Takes the rows of a file one by one and computes their order."""

    def __init__(self, folder: Path | None = None, run_rows: int = RUN_ROWS) -> None:
        """Above `run_rows` rows, records go to an unnamed temporary file in `folder`. None means the system's
        folder.
        """
        self._folder = folder
        self._run_rows = run_rows
        self._records: list[bytes] = []
        self._spilled: BinaryIO | None = None
        self._runs: list[int] = []
        self._text_bytes = 0
        self._limits = bytearray()

    def close(self) -> None:
        """Remove the temporary file."""
        if self._spilled is not None:
            self._spilled.close()

    def add(self, text: bytes | memoryview, most_tokens: Any) -> None:
        """Add the next row: the text that the model reads first, and the row's token limit. Raises OSError."""
        size = len(text)
        crc = 0
        values: list[int] = []
        for span in _SPANS[bisect_right(LENGTHS, size)]:
            crc = crc32(text[span], crc)
            values.append(crc)
        # The row's unique number ends the record. So records agree only where both rows have the same text, even if
        # one row is short.
        self._records.append(_packs[len(values)](*values, len(self._limits)))
        self._limits.append(min(most_tokens.bit_length(), _UNKNOWN - 1) if type(most_tokens) is int else _UNKNOWN)
        self._text_bytes += size
        if len(self._records) == self._run_rows:
            self._spill()

    def order(self, cache_bytes: int | None) -> RowOrder:
        """Return the order of all added rows. Call this once. Raises OSError.

        `cache_bytes` is the amount of text that the smallest upstream's prefix cache holds, or None if unknown.
        """
        tree = Tree(len(self._limits), LENGTHS)
        tree.grow(self._sorted())
        total = max(1, self._text_bytes)
        share = tree.shared_bytes / total
        distinct = _megabytes(tree.distinct_bytes)
        if share < MIN_GAIN:
            return self._unsorted(f"rows share {share:.1%} of their text: too little for order to matter", share)
        if cache_bytes is not None and tree.distinct_bytes <= FREE_CACHE * cache_bytes:
            return self._unsorted(
                f"rows share {share:.1%} of their text, and all that is shared (up to {distinct}) "
                f"fits into an upstream's cache ({_megabytes(cache_bytes)}): order does not matter",
                share,
            )
        cache = "of unknown size" if cache_bytes is None else f"of {_megabytes(cache_bytes)}"
        reason = (
            f"grouped by prefix: rows share {share:.1%} of their text, and up to {distinct} of "
            f"different prefixes meet a cache {cache}"
        )
        return self._grouped(tree, reason, share)

    def _unsorted(self, reason: str, share: float) -> RowOrder:
        few = self._long()
        if not few:
            return RowOrder(f"file order: {reason}", share)
        rows = array("I", few)
        early = bytearray(len(self._limits))
        for row in few:
            early[row] = 1
        row = early.find(0)
        while row >= 0:
            rows.append(row)
            row = early.find(0, row + 1)
        return RowOrder(f"file order, long rows first: {reason}", share, rows)

    def _grouped(self, tree: Tree, reason: str, share: float) -> RowOrder:
        bounds, hashes = tree.arrange(chain(self._long(), range(len(self._limits))), UNSHARED)
        rows = tree.place(self._by_limit())
        if all(map(eq, rows, count())):
            return RowOrder(f"{reason}; the file has them in this order", share, None, bounds, hashes)
        return RowOrder(reason, share, rows, bounds, hashes)

    def _by_limit(self) -> Iterator[int]:
        for limit in range(_UNKNOWN, -1, -1):
            yield from self._having(limit)

    def _having(self, limit: int) -> Iterator[int]:
        limits = self._limits
        row = limits.find(limit)
        while row >= 0:
            yield row
            row = limits.find(limit, row + 1)

    def _long(self) -> array[int]:
        """Return the rows that may generate far more tokens than most, if they are few. If sent last, they would
        delay the batch's end.
        """
        rows = len(self._limits)
        counts = [self._limits.count(limit) for limit in range(_UNKNOWN + 1)]
        middle = bisect_right(list(accumulate(counts)), rows // 2)
        longer = range(middle + LONG.bit_length() - 1, _UNKNOWN + 1)
        if sum(counts[limit] for limit in longer) > rows * FEW:
            return array("I")
        return array("I", chain.from_iterable(self._having(limit) for limit in reversed(longer)))

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - close() closes it
        self._records.sort()
        self._runs.append(self._spilled.tell())
        for start in range(0, len(self._records), BLOCK_ROWS):
            block = marshal.dumps(self._records[start : start + BLOCK_ROWS], 2)
            self._spilled.write(len(block).to_bytes(8))
            self._spilled.write(block)
        self._spilled.write(bytes(8))
        self._records.clear()

    def _sorted(self) -> Iterator[list[bytes]]:
        if not self._runs:
            self._records.sort()
            yield self._records
            return
        if self._records:
            self._spill()
        assert self._spilled is not None
        yield from _merged(self._spilled, self._runs)


def _merged(file: BinaryIO, runs: list[int]) -> Iterator[list[bytes]]:
    """Yield the records of sorted runs in order, with at most one block of each run in memory.

    Python's sort detects the runs in its input and merges them faster than a loop would.
    """
    places = list(runs)
    blocks: list[list[bytes]] = [[] for _ in runs]
    open_runs = set(range(len(runs)))
    while True:
        for run in list(open_runs):
            if not blocks[run]:
                file.seek(places[run])
                size = int.from_bytes(file.read(8))
                if size:
                    blocks[run] = marshal.loads(file.read(size))
                    places[run] += 8 + size
                else:
                    open_runs.discard(run)
        if not open_runs:
            return
        safe = min(blocks[run][-1] for run in open_runs)
        merged: list[bytes] = []
        for run in open_runs:
            cut = bisect_right(blocks[run], safe)
            merged += blocks[run][:cut]
            del blocks[run][:cut]
        merged.sort()
        yield merged


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
