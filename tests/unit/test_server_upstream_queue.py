"""Rows go to upstreams once each, those of a prefix to the same one, and none waits for an upstream that is slow."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.server.dispatch.plan import InputRows
from orchestrator.server.dispatch.row_order import RowOrder
from orchestrator.server.dispatch.upstream_queue import UpstreamQueues
from tests.support.examples import ample

NAMES = ["http://a/v1", "http://b/v1", "http://c/v1", "http://d/v1"]


def plan_of(sizes: list[int], done: set[int] = frozenset(), *, reverse: bool = False) -> InputRows:  # type: ignore[assignment]
    """A plan of groups of these sizes; its order is the file's, or the file's from the end."""
    rows = sum(sizes)
    bounds = [0]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    hashes = array("I", [(number * 2_654_435_761) % 2**32 for number in range(len(sizes))])
    order = RowOrder(
        "a test", 0.5, array("I", reversed(range(rows))) if reverse else None, array("I", bounds), hashes
    )
    marks = bytearray(row in done for row in range(rows))
    return InputRows(array("Q", range(rows + 1)), marks, "m", order)


def shares(plan: InputRows, upstream_queues: UpstreamQueues, names: list[str]) -> dict[str, list[int]]:
    """Who gets which rows, if each asks in turn."""
    taken: dict[str, list[int]] = defaultdict(list)
    waiting = list(names)
    while waiting:
        for name in list(waiting):
            row = upstream_queues.take(name)
            if row is None:
                waiting.remove(name)
            else:
                taken[name].append(row)
    return taken


def split_groups(plan: InputRows, taken: dict[str, list[int]]) -> int:
    owner = {row: name for name, rows in taken.items() for row in rows}
    rows = plan.order.rows or range(len(plan))
    return sum(len({owner[rows[at]] for at in range(*bounds)}) > 1 for bounds in pairwise(plan.order.bounds))


@pytest.mark.slow
@settings(max_examples=ample(400))
@given(
    st.lists(st.integers(1, 5) | st.integers(1, 300), max_size=20),
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60)), max_size=60),
    st.sets(st.integers(0, 400)),
    st.booleans(),
    st.booleans(),
)
@example([200], 2, [(0, 1), (1, 1), (0, 1)], set(), False, True)
def test_every_row_goes_out_once_whoever_asks(
    sizes: list[int], upstreams: int, asks: list[tuple[int, int]], done: set[int], reverse: bool, grouped: bool
) -> None:
    plan = plan_of(sizes, done, reverse=reverse)
    if not grouped:
        plan = InputRows(plan.offsets, plan.done, plan.model, RowOrder("a test", 0.0, plan.order.rows))
    upstream_queues = UpstreamQueues(plan, NAMES[:upstreams])
    # Two more than the queue knows: upstreams that came later.
    names = [*NAMES, "http://new/v1", "http://newer/v1"]
    taken = []
    for who, times in asks:
        taken += [row for _ in range(times) if (row := upstream_queues.take(names[who])) is not None]
    while (row := upstream_queues.take(names[len(asks) % 6])) is not None:
        taken.append(row)
    assert all(upstream_queues.take(name) is None for name in names)
    assert Counter(taken) == Counter(row for row in range(sum(sizes)) if row not in done)


@pytest.mark.parametrize("upstreams", [2, 3, 4])
@pytest.mark.parametrize("sizes", [[8] * 2500, [50] * 400, [1, 30, 2, 8] * 200], ids=["8", "50", "mixed"])
def test_with_equal_speeds_nine_groups_of_ten_stay_on_one_upstream(sizes: list[int], upstreams: int) -> None:
    plan = plan_of(sizes, reverse=True)
    taken = shares(plan, UpstreamQueues(plan, NAMES[:upstreams]), NAMES[:upstreams])
    assert split_groups(plan, taken) <= len(sizes) / 10
    assert max(map(len, taken.values())) - min(map(len, taken.values())) <= 1


def test_rows_of_an_upstream_that_never_asks_go_to_the_others_group_by_group() -> None:
    plan = plan_of([8] * 400)
    taken = shares(plan, UpstreamQueues(plan, NAMES), NAMES[:3])
    assert sum(map(len, taken.values())) == 3200
    assert split_groups(plan, taken) <= 40


def test_an_upstream_that_is_ten_times_as_fast_does_ten_times_as_much() -> None:
    plan = plan_of([8] * 400)
    upstream_queues = UpstreamQueues(plan, NAMES[:2])
    taken: dict[str, list[int]] = defaultdict(list)
    while sum(map(len, taken.values())) < 3200:
        for name in [NAMES[0]] * 10 + [NAMES[1]]:
            if (row := upstream_queues.take(name)) is not None:
                taken[name].append(row)
    assert len(taken[NAMES[0]]) / len(taken[NAMES[1]]) == pytest.approx(10, rel=0.02)
    assert split_groups(plan, taken) <= 40


def test_one_group_of_all_rows_is_shared_by_halves() -> None:
    plan = plan_of([4000])
    taken = shares(plan, UpstreamQueues(plan, NAMES), NAMES)
    assert max(map(len, taken.values())) - min(map(len, taken.values())) <= 1
    # Each upstream works through few stretches of it, so that what lies side by side stays together.
    stretches = sum(sum(after - before != 1 for before, after in pairwise(rows)) + 1 for rows in taken.values())
    assert stretches <= 60


def test_what_is_taken_over_is_a_whole_group() -> None:
    plan = plan_of([10] * 8)
    upstream_queues = UpstreamQueues(plan, NAMES[:2])
    taken = [row for _ in range(20) if (row := upstream_queues.take("http://new/v1")) is not None]
    assert taken == [*range(taken[0], taken[0] + 10), *range(taken[10], taken[10] + 10)]
    assert {row % 10 for row in taken[::10]} == {0}


def test_a_prefix_has_the_same_home_in_the_next_batch_and_homes_are_shared_evenly() -> None:
    homes: list[dict[int, str]] = []
    for sizes in ([4] * 2000, [7] * 2000):
        plan = plan_of(sizes)
        upstream_queues = UpstreamQueues(plan, NAMES)
        home = {}
        # Each takes 1,600 rows, fewer than any of them has at home.
        for name in NAMES:
            for _ in range(1600):
                row = upstream_queues.take(name)
                assert row is not None
                home[row // sizes[0]] = name
        homes.append(home)
    both = homes[0].keys() & homes[1].keys()
    assert len(both) > 500
    assert all(homes[0][group] == homes[1][group] for group in both)


def test_when_an_upstream_goes_only_its_groups_move() -> None:
    def home(names: list[str]) -> dict[int, str]:
        plan = plan_of([1] * 4000)
        upstream_queues = UpstreamQueues(plan, names)
        return {row: name for name in names for _ in range(800) if (row := upstream_queues.take(name)) is not None}

    before, after = home(NAMES), home(NAMES[:3])
    kept = [group for group in before.keys() & after.keys() if before[group] != NAMES[3]]
    assert len(kept) > 1000
    assert all(before[group] == after[group] for group in kept)


def test_without_groups_rows_go_out_in_order_to_whoever_asks() -> None:
    plan = plan_of([1] * 6, {2})
    upstream_queues = UpstreamQueues(InputRows(plan.offsets, plan.done, "m", RowOrder("a test")), NAMES)
    assert [upstream_queues.take(NAMES[number % 4]) for number in range(6)] == [0, 1, 3, 4, 5, None]


def test_a_row_that_is_done_meanwhile_is_not_handed_out() -> None:
    plan = plan_of([4, 4])
    upstream_queues = UpstreamQueues(plan, NAMES)
    taken = [upstream_queues.take(NAMES[0])]
    for row in {0, 1, 4, 5} - set(taken):
        plan.done[row] = 1
    taken += [upstream_queues.take(NAMES[0]) for _ in range(8)]
    assert {2, 3, 6, 7} <= set(taken) <= {0, 1, 2, 3, 4, 5, 6, 7, None}
    assert len([row for row in taken if row in {0, 1, 4, 5}]) <= 1
