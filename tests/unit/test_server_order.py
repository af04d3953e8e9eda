"""The order of a batch's rows: what shares a prefix goes out side by side, and the file's order decides the rest."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.row_order import LENGTHS, UNSHARED, RowOrder, Sorter
from tests.support.examples import ample

Row = tuple[bytes, int | None]


def ordered(
    rows: list[Row], cache_bytes: int | None = None, folder: Path | None = None, run_rows: int = 65_536
) -> RowOrder:
    with closing(Sorter(folder, run_rows)) as sorter:
        for text, most_tokens in rows:
            sorter.add(text, most_tokens)
        return sorter.order(cache_bytes)


def sequence(order: RowOrder, rows: int) -> list[int]:
    return list(range(rows)) if order.rows is None else list(order.rows)


def level(one: bytes, other: bytes) -> int:
    """How many of LENGTHS two texts have in common."""
    return sum(min(len(one), len(other)) >= length and one[:length] == other[:length] for length in LENGTHS)


BLOCKS = st.lists(st.sampled_from([b"a" * 256, b"b" * 256, b"c" * 256]), max_size=7).map(b"".join)
TEXTS = st.builds(lambda text, tail: text + tail, BLOCKS, st.sampled_from([b"", b"", b"x", b"y" * 200]))
ROWS = st.lists(st.tuples(TEXTS, st.sampled_from([None, 64, 64, 64, 100, 5000])), max_size=30)


@pytest.mark.slow
@settings(max_examples=ample(300))
@given(ROWS)
@example([(b"a" * 300, 64), (b"b" * 300, 64), (b"a" * 300, 64), (b"b" * 300, 64)])
def test_rows_with_a_common_prefix_of_any_length_are_neighbours(rows: list[Row]) -> None:
    order = ordered(rows)
    found = sequence(order, len(rows))
    assert sorted(found) == list(range(len(rows)))
    if len(order.bounds) == 0:
        return
    for length in LENGTHS[:4]:
        places = defaultdict(list)
        for place, row in enumerate(found):
            if len(rows[row][0]) >= length:
                places[rows[row][0][:length]].append(place)
        for of_prefix in places.values():
            assert of_prefix[-1] - of_prefix[0] == len(of_prefix) - 1


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(ROWS)
def test_what_rows_share_is_counted_as_the_longest_prefix_that_an_earlier_row_has(rows: list[Row]) -> None:
    texts = [text for text, _ in rows]
    shared = 0
    for number, text in enumerate(texts):
        deepest = max((level(text, other) for other in texts[:number]), default=0)
        shared += LENGTHS[deepest - 1] if deepest else 0
    assert ordered(rows).predicted_hit == pytest.approx(shared / max(1, sum(map(len, texts))))


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(ROWS)
def test_groups_are_ranges_and_a_prefix_has_the_same_hash_in_every_batch(rows: list[Row]) -> None:
    order = ordered(rows)
    if len(order.bounds) == 0:
        return
    assert (order.bounds[0], order.bounds[-1], len(order.hashes)) == (0, len(rows), len(order.bounds) - 1)
    assert all(start < end for start, end in pairwise(order.bounds))
    again = ordered([(b"z" * 300, 64), (b"z" * 300, 64), *rows])
    assert set(order.hashes) - set(range(0, len(rows), UNSHARED)) <= set(again.hashes)


@pytest.mark.slow
@settings(max_examples=ample(60))
@given(ROWS.filter(lambda rows: len(rows) > 3), st.integers(1, 7))
def test_spilling_changes_nothing(tmp_path: Path, rows: list[Row], run_rows: int) -> None:
    assert ordered(rows, folder=tmp_path, run_rows=run_rows) == ordered(rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_many_rows_are_spilled_and_merged_in_blocks(tmp_path: Path) -> None:
    numbers = list(range(30_000))
    random.Random(1).shuffle(numbers)
    rows: list[Row] = [(f"{number // 3:08d}".encode() * 40, 64) for number in numbers]
    order = ordered(rows, folder=tmp_path, run_rows=7_000)
    documents = [numbers[row] // 3 for row in sequence(order, len(rows))]
    assert all(len(set(documents[place : place + 3])) == 1 for place in range(0, len(documents), 3))
    assert len(order.bounds) == 10_001


def documents_and_questions(documents: int, questions: int, size: int = 3000, most: int = 64) -> list[Row]:
    """Rows in a shuffled order, each a document and a question about it."""
    rows: list[Row] = [
        (random.Random(document).randbytes(size) + f"Question {question}?".encode() * 10, most)
        for document in range(documents)
        for question in range(questions)
    ]
    random.Random(0).shuffle(rows)
    return rows


def test_groups_come_as_the_file_names_them_first_and_their_rows_in_its_order() -> None:
    rows = documents_and_questions(20, 5)
    found = sequence(ordered(rows), len(rows))
    groups = [found[place : place + 5] for place in range(0, 100, 5)]
    assert all(group == sorted(group) for group in groups)
    firsts = [group[0] for group in groups]
    assert firsts == sorted(firsts)


def test_documents_behind_one_system_prompt_are_groups_of_their_own() -> None:
    rows = [(b"System. " * 100 + text, most) for text, most in documents_and_questions(20, 5)]
    order = ordered(rows)
    assert len(order.hashes) == 20
    assert len(set(order.hashes)) == 20
    found = sequence(order, len(rows))
    assert all(len({rows[row][0][:3000] for row in found[place : place + 5]}) == 1 for place in range(0, 100, 5))


def test_documents_behind_a_longer_system_prompt_are_neighbours_in_one_group() -> None:
    rows = [(b"System. " * 1000 + text, most) for text, most in documents_and_questions(20, 5)]
    order = ordered(rows)
    assert len(order.hashes) == 1
    found = sequence(order, len(rows))
    assert all(len({rows[row][0][:11_000] for row in found[place : place + 5]}) == 1 for place in range(0, 100, 5))


def test_rows_that_may_generate_more_go_first_inside_a_group() -> None:
    rows: list[Row] = [(b"a" * 300, most) for most in (64, 256, 64, 1024, 256)]
    assert sequence(ordered(rows), 5) == [3, 1, 4, 0, 2]


def test_a_few_long_rows_and_their_groups_go_first() -> None:
    rows = documents_and_questions(20, 5)
    late = next(row for row in reversed(range(100)) if row not in {sequence(ordered(rows), 100)[0]})
    rows[late] = (rows[late][0], 8192)
    assert sequence(ordered(rows), 100)[0] == late
    unshared: list[Row] = [(random.Random(number).randbytes(500), 64) for number in range(100)]
    unshared[70] = (unshared[70][0], 8192)
    order = ordered(unshared)
    assert sequence(order, 100) == [70, *range(70), *range(71, 100)]
    assert order.reason.startswith("file order, long rows first")


def test_many_long_rows_keep_their_place() -> None:
    rows: list[Row] = [
        (random.Random(number).randbytes(500), 8192 if number % 3 == 0 else 64) for number in range(90)
    ]
    assert ordered(rows).rows is None


def test_rows_that_share_nothing_keep_the_files_order() -> None:
    order = ordered([(random.Random(number).randbytes(2000), 64) for number in range(50)])
    assert (order.rows, len(order.bounds), order.predicted_hit) == (None, 0, 0.0)
    assert order.reason == "file order: rows share 0.0% of their text: too little for order to matter"


def test_what_fits_into_the_cache_keeps_the_files_order() -> None:
    rows = documents_and_questions(20, 5)
    fits, too_small = ordered(rows, 200_000), ordered(rows, 50_000)
    assert (fits.rows, len(fits.bounds)) == (None, 0)
    assert "fits into an upstream's cache (0.20 MB)" in fits.reason
    assert too_small.rows is not None
    assert too_small.reason.startswith("grouped by prefix: rows share ")
    assert fits.predicted_hit == too_small.predicted_hit > 0.5


def test_a_file_in_grouped_order_needs_no_order_of_its_own_and_keeps_its_groups() -> None:
    rows = sorted(documents_and_questions(20, 5))
    order = ordered(rows)
    assert order.rows is None
    assert list(order.bounds) == list(range(0, 101, 5))
    assert order.reason.endswith("the file has them in this order")


def test_no_rows_have_an_order() -> None:
    assert sequence(ordered([]), 0) == []
