"""Rows -> shards: as many rows as one batch may hold, in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row that waits for a shard; `length` is its line in bytes, without newline."""

    seq: int
    endpoint: str
    model: str
    length: int


@dataclass(frozen=True, slots=True)
class Range:
    """The waiting rows of one endpoint and model with `first <= seq <= last`."""

    endpoint: str
    model: str
    first: int
    last: int
    rows: int
    bytes: int


def pack(rows: Iterable[Waiting], *, max_rows: int, max_bytes: int, slack: int = 0) -> Iterator[Range]:
    """Cut rows, which must come sorted by (endpoint, model, seq), into ranges within the limits.

    `slack` is how many bytes a line may grow by when the model's name is put in. A row that is larger than
    `max_bytes` by itself gets a range of its own: the backend's refusal is then that row's, and no other's.
    """
    open_: Range | None = None
    for row in rows:
        size = row.length + 1 + slack
        if open_ is not None and (
            (row.endpoint, row.model) != (open_.endpoint, open_.model)
            or open_.rows >= max_rows
            or open_.bytes + size > max_bytes
        ):
            yield open_
            open_ = None
        if open_ is None:
            open_ = Range(row.endpoint, row.model, row.seq, row.seq, 1, size)
        else:
            open_ = Range(open_.endpoint, open_.model, open_.first, row.seq, open_.rows + 1, open_.bytes + size)
    if open_ is not None:
        yield open_
