"""Rows -> shards: each row once, in order, within the limits, groups apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.policy.sharding import Range, WaitingRow, pack
from tests.support.examples import ample

CHAT, EMBED = "/v1/chat/completions", "/v1/embeddings"


def rows(*lengths: int, model: str = "m", endpoint: str = CHAT, first: int = 0) -> list[WaitingRow]:
    return [WaitingRow(seq, endpoint, model, length) for seq, length in enumerate(lengths, first)]


def range_(first: int, last: int, rows: int, size: int, model: str = "m", endpoint: str = CHAT) -> Range:
    return Range(endpoint, model, first, last, rows, size, inputs=rows, max_output=None)


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
def test_rows_are_cut_into_ranges(
    waiting: list[WaitingRow], max_rows: int, max_bytes: int, ranges: list[Range]
) -> None:
    assert list(pack(waiting, max_rows=max_rows, max_bytes=max_bytes)) == ranges


def test_slack_counts_for_every_row() -> None:
    assert list(pack(rows(9, 9), max_rows=9, max_bytes=39, slack=10)) == [range_(0, 0, 1, 20), range_(1, 1, 1, 20)]
    assert list(pack(rows(9, 9), max_rows=9, max_bytes=40, slack=10)) == [range_(0, 1, 2, 40)]


def row(
    seq: int, tokens: int = 0, inputs: int = 1, max_output: int | None = 5, attempts: int = 0, endpoint: str = CHAT
) -> WaitingRow:
    return WaitingRow(seq, endpoint, "m", 9, tokens, inputs, max_output, attempts)


def cut(waiting: list[WaitingRow], max_tokens: int | None = None, max_inputs: int | None = None) -> list[list[int]]:
    """Which rows come together; none has a place between."""
    ranges = list(pack(waiting, max_rows=99, max_bytes=9999, max_tokens=max_tokens, max_inputs=max_inputs))
    return [list(range(found.first, found.last + 1)) for found in ranges]


LIMITED = {
    "tokens fit exactly": (cut([row(0, 50), row(1, 50)], max_tokens=100), [[0, 1]]),
    "a token too many": (cut([row(0, 50), row(1, 51)], max_tokens=100), [[0], [1]]),
    "a row with too many tokens has its own": (
        cut([row(0, 5), row(1, 500), row(2, 5)], max_tokens=100),
        [[0], [1], [2]],
    ),
    "tokens without a limit": (cut([row(0, 10**9), row(1, 10**9)]), [[0, 1]]),
    "rows without tokens": (cut([row(0), row(1)], max_tokens=1), [[0, 1]]),
    "inputs fit exactly": (
        cut([row(0, inputs=3, endpoint=EMBED), row(1, inputs=2, endpoint=EMBED)], None, 5),
        [[0, 1]],
    ),
    "an input too many": (
        cut([row(0, inputs=3, endpoint=EMBED), row(1, inputs=3, endpoint=EMBED)], None, 5),
        [[0], [1]],
    ),
    "a row with too many inputs has its own": (
        cut([row(0, endpoint=EMBED), row(1, inputs=9, endpoint=EMBED), row(2, endpoint=EMBED)], None, 5),
        [[0], [1], [2]],
    ),
    "inputs are limited for embeddings only": (cut([row(0), row(1)], None, 1), [[0, 1]]),
}


@pytest.mark.parametrize(("found", "expected"), LIMITED.values(), ids=LIMITED.keys())
def test_tokens_and_inputs_are_limits_too(found: list[list[int]], expected: list[list[int]]) -> None:
    assert found == expected


def test_a_range_says_what_its_rows_add_up_to() -> None:
    waiting = [row(0, 7, 2, 100, 2), row(1, 8, 3, 50, 1), row(2, 9, 1, None)]
    assert list(pack(waiting, max_rows=2, max_bytes=999)) == [
        Range(CHAT, "m", 0, 1, 2, 20, tokens=15, inputs=5, max_output=150, attempts=2),
        Range(CHAT, "m", 2, 2, 1, 10, tokens=9, inputs=1, max_output=None, attempts=0),
    ]


def test_answers_have_no_bound_together_where_one_has_none() -> None:
    for bounds in ([5, None], [None, 5], [None, None]):
        waiting = [row(seq, max_output=bound) for seq, bound in enumerate(bounds)]
        assert [found.max_output for found in pack(waiting, max_rows=9, max_bytes=999)] == [None]


def sorted_rows(found: list[tuple[str, str, int, int, int]]) -> list[WaitingRow]:
    waiting = [WaitingRow(seq, *row) for seq, row in enumerate(found)]
    return sorted(waiting, key=lambda row: (row.endpoint, row.model, row.seq))


GROUPS = st.tuples(
    st.sampled_from([CHAT, EMBED]), st.sampled_from("ab"), st.integers(1, 50), st.integers(0, 20), st.integers(1, 5)
)
ROWS = st.lists(GROUPS, max_size=40).map(sorted_rows)
LIMIT = st.none() | st.integers(1, 40)


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(ROWS, st.integers(1, 8), st.integers(1, 120), LIMIT, LIMIT, st.integers(0, 10))
def test_each_row_is_in_one_range_and_no_range_is_too_large(
    waiting: list[WaitingRow],
    max_rows: int,
    max_bytes: int,
    max_tokens: int | None,
    max_inputs: int | None,
    slack: int,
) -> None:
    ranges = list(
        pack(
            iter(waiting), max_rows=max_rows, max_bytes=max_bytes, max_tokens=max_tokens, max_inputs=max_inputs,
            slack=slack,
        )
    )  # fmt: skip
    told = [
        [row for row in waiting
         if (row.endpoint, row.model) == (found.endpoint, found.model) and found.first <= row.seq <= found.last]
        for found in ranges
    ]  # fmt: skip
    assert [row for part in told for row in part] == waiting

    def fits(part: list[WaitingRow]) -> bool:
        return (
            len(part) <= max_rows
            and sum(row.length + 1 + slack for row in part) <= max_bytes
            and (max_tokens is None or sum(row.tokens for row in part) <= max_tokens)
            and (max_inputs is None or part[0].endpoint != EMBED or sum(row.inputs for row in part) <= max_inputs)
        )

    for found, part in zip(ranges, told, strict=True):
        assert (found.rows, found.bytes) == (len(part), sum(row.length + 1 + slack for row in part))
        assert (found.tokens, found.inputs) == (sum(row.tokens for row in part), sum(row.inputs for row in part))
        assert fits(part) or found.rows == 1
    # No range could have taken the row behind it: as few batches as the limits allow in this order.
    for found, part, behind in zip(ranges, told, told[1:], strict=False):
        same = (found.endpoint, found.model) == (behind[0].endpoint, behind[0].model)
        assert not same or not fits([*part, behind[0]])


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(250, [150, 100]), (201, [101, 100]), (400, [200, 200]), (450, [200, 150, 100]), (90, [90]), (200, [200])],
)
def test_a_last_range_that_is_too_small_takes_rows_from_the_one_before(count: int, sizes: list[int]) -> None:
    found = list(pack(rows(*[9] * count), min_rows=100, max_rows=200, max_bytes=10**6))
    assert [one.rows for one in found] == sizes
    assert [one.bytes for one in found] == [10 * size for size in sizes]
    assert [one.last + 1 for one in found[:-1]] == [one.first for one in found[1:]]


def test_a_range_takes_no_rows_of_another_model() -> None:
    waiting = [*rows(*[9] * 200, model="a"), *rows(*[9] * 5, model="b", first=200)]
    found = list(pack(waiting, min_rows=100, max_rows=200, max_bytes=10**6))
    assert [(one.model, one.rows) for one in found] == [("a", 200), ("b", 5)]


@given(st.lists(st.integers(1, 60), max_size=80), st.integers(1, 20), st.integers(1, 30))
def test_whatever_is_the_least_each_row_goes_once_with_its_figures(lengths: list[int], least: int, most: int) -> None:
    waiting = [
        WaitingRow(seq, CHAT, "m", length, tokens=seq, max_output=None if length % 7 == 0 else length)
        for seq, length in enumerate(lengths)
    ]
    found = list(pack(waiting, min_rows=least, max_rows=most, max_bytes=600))
    place = 0
    for one in found:
        mine = waiting[place : place + one.rows]
        assert (one.first, one.last) == (mine[0].seq, mine[-1].seq)
        assert (one.bytes, one.tokens) == (sum(row.length + 1 for row in mine), sum(row.tokens for row in mine))
        bound = None if any(row.max_output is None for row in mine) else sum(row.max_output or 0 for row in mine)
        assert one.max_output in (None, bound)
        place += one.rows
    assert place == len(waiting)
