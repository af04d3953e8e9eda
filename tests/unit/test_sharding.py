"""Rows -> shards: each row once, in order, within the limits, groups apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sharding import Range, Waiting, pack

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


def rows(*lengths: int, model: str = "m", endpoint: str = CHAT, first: int = 0) -> list[Waiting]:
    return [Waiting(seq, endpoint, model, length) for seq, length in enumerate(lengths, first)]


def range_(first: int, last: int, rows: int, size: int, model: str = "m", endpoint: str = CHAT) -> Range:
    return Range(endpoint, model, first, last, rows, size)


TABLE = {
    "nothing": ([], 10, 100, []),
    "one row": (rows(9), 10, 100, [range_(0, 0, 1, 10)]),
    "as many as may be": (rows(9, 9), 2, 100, [range_(0, 1, 2, 20)]),
    "one more than may be": (rows(9, 9, 9), 2, 100, [range_(0, 1, 2, 20), range_(2, 2, 1, 10)]),
    "bytes fit exactly, newlines counted": (rows(9, 9), 10, 20, [range_(0, 1, 2, 20)]),
    "a byte too many": (rows(9, 10), 10, 20, [range_(0, 0, 1, 10), range_(1, 1, 1, 11)]),
    "a row that is too large has its own": (
        rows(5, 500, 5),
        10,
        100,
        [range_(0, 0, 1, 6), range_(1, 1, 1, 501), range_(2, 2, 1, 6)],
    ),
    "one row a batch": (rows(1, 1), 1, 100, [range_(0, 0, 1, 2), range_(1, 1, 1, 2)]),
    "places between": ([*rows(9), *rows(9, first=7)], 10, 100, [range_(0, 7, 2, 20)]),
    "models apart": (
        [*rows(9, model="a"), *rows(9, model="b", first=1), *rows(9, model="b", first=2)],
        10,
        100,
        [range_(0, 0, 1, 10, "a"), range_(1, 2, 2, 20, "b")],
    ),
    "endpoints apart": (
        [*rows(9), *rows(9, endpoint=EMBED, first=1)],
        10,
        100,
        [range_(0, 0, 1, 10), range_(1, 1, 1, 10, endpoint=EMBED)],
    ),
}


@pytest.mark.parametrize(("waiting", "max_rows", "max_bytes", "ranges"), TABLE.values(), ids=TABLE.keys())
def test_rows_are_cut_into_ranges(waiting: list[Waiting], max_rows: int, max_bytes: int, ranges: list[Range]) -> None:
    assert list(pack(waiting, max_rows=max_rows, max_bytes=max_bytes)) == ranges


def test_slack_counts_for_every_row() -> None:
    assert list(pack(rows(9, 9), max_rows=9, max_bytes=39, slack=10)) == [range_(0, 0, 1, 20), range_(1, 1, 1, 20)]
    assert list(pack(rows(9, 9), max_rows=9, max_bytes=40, slack=10)) == [range_(0, 1, 2, 40)]


def sorted_rows(found: list[tuple[str, str, int]]) -> list[Waiting]:
    waiting = [Waiting(seq, *row) for seq, row in enumerate(found)]
    return sorted(waiting, key=lambda row: (row.endpoint, row.model, row.seq))


GROUPS = st.tuples(st.sampled_from([CHAT, EMBED]), st.sampled_from("ab"), st.integers(1, 50))
ROWS = st.lists(GROUPS, max_size=40).map(sorted_rows)


@settings(max_examples=150)
@given(ROWS, st.integers(1, 8), st.integers(1, 120), st.integers(0, 10))
def test_each_row_is_in_one_range_and_no_range_is_too_large(
    waiting: list[Waiting], max_rows: int, max_bytes: int, slack: int
) -> None:
    ranges = list(pack(iter(waiting), max_rows=max_rows, max_bytes=max_bytes, slack=slack))
    told = [
        [row for row in waiting
         if (row.endpoint, row.model) == (found.endpoint, found.model) and found.first <= row.seq <= found.last]
        for found in ranges
    ]  # fmt: skip
    assert [row for part in told for row in part] == waiting
    for found, part in zip(ranges, told, strict=True):
        sizes = [row.length + 1 + slack for row in part]
        assert (found.rows, found.bytes) == (len(part), sum(sizes))
        assert found.rows <= max_rows
        assert found.bytes <= max_bytes or found.rows == 1
    # No range could have taken the row behind it: as few batches as the limits allow in this order.
    for found, behind in zip(ranges, told[1:], strict=False):
        same = (found.endpoint, found.model) == (behind[0].endpoint, behind[0].model)
        assert not same or found.rows == max_rows or found.bytes + behind[0].length + 1 + slack > max_bytes
