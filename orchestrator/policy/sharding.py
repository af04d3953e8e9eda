"""Division of rows into shards: in order, with as many rows as one batch may hold. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec import Struct, field

from orchestrator.core.batch_api import EMBEDDINGS


class WaitingRow(msgspec.Struct, frozen=True):
    """A row that waits for a shard. `length` is the length of its line in bytes, without newline.

    `tokens` is an estimate for the prompt, and `inputs` counts the texts of an embedding row. `max_output` is the
    maximum tokens of the answer, or None without a bound. `attempts` counts the batches that the row was part of.
    """

    seq: int
    endpoint: str
    model: str
    length: int
    tokens: int = 0
    inputs: int = 1
    max_output: int | None = None
    attempts: int = 0


class Range(Struct, frozen=True):
    """The waiting rows of one endpoint and model with `first <= seq <= last`.

    `bytes`, `tokens`, `inputs` and `max_output` are sums. `max_output` is None if a row has no bound. `attempts` is
    the maximum over the rows.
    """

    endpoint: str
    model: str
    first: int
    last: int
    rows: int
    bytes: int
    tokens: int = 0
    inputs: int = 0
    max_output: int | None = 0
    attempts: int = 0


class _Open(Struct):
    """A range that still takes rows. `tail` has its newest rows, with their sizes."""

    endpoint: str
    model: str
    first: int
    last: int = 0
    rows: int = 0
    bytes: int = 0
    tokens: int = 0
    inputs: int = 0
    max_output: int | None = 0
    attempts: int = 0
    tail: deque[tuple[WaitingRow, int]] = field(default_factory=deque)

    def add(self, row: WaitingRow, size: int) -> None:
        self.tail.append((row, size))
        self.last = row.seq
        self._count(row, size)

    def _count(self, row: WaitingRow, size: int) -> None:
        self.rows += 1
        self.bytes += size
        self.tokens += row.tokens
        self.inputs += row.inputs
        self.max_output = self.most_with(row)
        self.attempts = max(self.attempts, row.attempts)

    def most_with(self, row: WaitingRow) -> int | None:
        return None if self.max_output is None or row.max_output is None else self.max_output + row.max_output

    def take_from(self, before: _Open, count: int) -> None:
        for _ in range(count):
            row, size = before.tail.pop()
            before.rows, before.bytes = before.rows - 1, before.bytes - size
            before.tokens, before.inputs = before.tokens - row.tokens, before.inputs - row.inputs
            if before.max_output is not None and row.max_output is not None:
                before.max_output -= row.max_output
            self.first = row.seq
            self._count(row, size)
        before.last = before.tail[-1][0].seq

    def closed(self) -> Range:
        return Range(
            self.endpoint, self.model, self.first, self.last, self.rows, self.bytes,
            self.tokens, self.inputs, self.max_output, self.attempts,
        )  # fmt: skip


def pack(
    rows: Iterable[WaitingRow],
    *,
    max_rows: int,
    max_bytes: int,
    min_rows: int = 1,
    max_tokens: int | None = None,
    max_inputs: int | None = None,
    slack: int = 0,
    fits: Callable[[int, int | None], bool] | None = None,
) -> Iterator[Range]:
    """Divide rows into ranges within the limits. The rows must be sorted by (endpoint, model, seq).

    `slack` is the number of bytes by which a model's name may lengthen a line. `max_inputs` applies to embeddings
    only. `fits(prompt tokens, maximum answer tokens)` says whether a budget covers a range. A row that exceeds a
    limit by itself gets its own range, so that the backend refuses only that row. A range with fewer than `min_rows`
    rows takes rows from the previous range if that range can spare them.
    """
    before: _Open | None = None
    for open_ in _cut(rows, min_rows, max_rows, max_bytes, max_tokens, max_inputs, slack, fits):
        if before is not None:
            missing, is_same = min_rows - open_.rows, (before.endpoint, before.model) == (open_.endpoint, open_.model)
            if is_same and 0 < missing <= before.rows - min_rows:
                open_.take_from(before, missing)
            yield before.closed()
        before = open_
    if before is not None:
        yield before.closed()


def _cut(
    rows: Iterable[WaitingRow],
    min_rows: int,
    max_rows: int,
    max_bytes: int,
    max_tokens: int | None,
    max_inputs: int | None,
    slack: int,
    fits: Callable[[int, int | None], bool] | None,
) -> Iterator[_Open]:
    open_: _Open | None = None
    for row in rows:
        size = row.length + 1 + slack
        if open_ is not None and (
            row.endpoint != open_.endpoint
            or row.model != open_.model
            or open_.rows >= max_rows
            or open_.bytes + size > max_bytes
            or (max_tokens is not None and open_.tokens + row.tokens > max_tokens)
            or (max_inputs is not None and row.endpoint == EMBEDDINGS and open_.inputs + row.inputs > max_inputs)
            or (fits is not None and not fits(open_.tokens + row.tokens, open_.most_with(row)))
        ):
            yield open_
            open_ = None
        if open_ is None:
            open_ = _Open(row.endpoint, row.model, row.seq, tail=deque(maxlen=min_rows))
        open_.add(row, size)
    if open_ is not None:
        yield open_
