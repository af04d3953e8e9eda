"""Whose row goes next: tenants alike, of each what is due soonest, and what is urgent first."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.model import Job, JobId, JobKind
from orchestrator.policy.forecast import Pace
from orchestrator.policy.planner.observations import goes_first
from orchestrator.server.dispatch.fair_queue import Fair, KeepsTurnError

NOW = datetime(2026, 11, 21, 20, tzinfo=UTC)
HOUR = 3600.0


class Rows:
    """A batch of so many rows of `size` bytes."""

    def __init__(
        self, name: str, rows: int, *, tenant: str = "", deadline: float = 24 * HOUR, size: int = 1000
    ) -> None:
        self.name, self.rows_left, self.tenant, self.deadline, self.size = name, rows, tenant, deadline, size

    def take(self) -> Rows | None:
        if not self.rows_left:
            return None
        self.rows_left -= 1
        return self


def served(fair: Fair[Rows], times: int, asker: str = "x") -> list[str]:
    fair.wake()
    names = []
    for _ in range(times):
        found = fair.take(asker, Rows.take, lambda rows: rows.size)
        if found is None:
            break
        names.append(found.name)
    return names


def of(*batches: Rows) -> Fair[Rows]:
    fair: Fair[Rows] = Fair()
    for batch in batches:
        fair.add(batch)
    return fair


def test_one_batch_alone_gets_everything() -> None:
    assert served(of(Rows("a", 5)), 9) == ["a"] * 5


def test_what_is_due_sooner_goes_first_whenever_it_came() -> None:
    fair = of(Rows("late", 10, deadline=24 * HOUR), Rows("later", 10, deadline=25 * HOUR))
    assert served(fair, 5) == ["late"] * 5
    fair.add(Rows("soon", 3, deadline=HOUR))
    assert served(fair, 100) == ["soon"] * 3 + ["late"] * 5 + ["later"] * 10


def test_of_what_is_due_at_once_the_first_that_came_goes_first() -> None:
    assert served(of(Rows("first", 3), Rows("second", 3)), 9) == ["first"] * 3 + ["second"] * 3


def test_tenants_share_alike_however_many_batches_each_has() -> None:
    crowd = [Rows(f"crowd-{number}", 1000, tenant="crowd") for number in range(9)]
    told = Counter(name.split("-")[0] for name in served(of(*crowd, Rows("lone", 1000, tenant="lone")), 400))
    assert told == {"crowd": 200, "lone": 200}


def test_tenants_share_by_bytes_not_by_rows() -> None:
    told = Counter(
        served(of(Rows("big", 10_000, tenant="a", size=9744), Rows("small", 10_000, tenant="b", size=744)), 1100)
    )
    assert told == {"big": 100, "small": 1000}


def test_a_tenant_that_would_miss_a_deadline_goes_before_all_others() -> None:
    tight, other = Rows("tight", 100, tenant="a", deadline=2 * HOUR), Rows("other", 10, tenant="b", deadline=HOUR)
    ahead = Rows("ahead", 10, tenant="a", deadline=1.5 * HOUR)
    fair = of(other, tight, ahead)
    fair.review(0.0, rows_per_second=0.03)
    assert served(fair, 1000) == ["ahead"] * 10 + ["tight"] * 100 + ["other"] * 10


def test_batches_that_together_would_miss_a_deadline_are_urgent() -> None:
    together = [Rows(f"part{number}", 40, tenant="a", deadline=200.0 + number) for number in range(3)]
    fair = of(Rows("other", 50, tenant="b", deadline=100_000.0), *together)
    fair.review(0.0, rows_per_second=1.0)
    assert served(fair, 120) == ["part0"] * 40 + ["part1"] * 40 + ["part2"] * 40


def test_two_that_are_tight_go_by_deadline() -> None:
    fair = of(Rows("second", 50, tenant="b", deadline=200.0), Rows("first", 50, tenant="a", deadline=100.0))
    fair.review(0.0, rows_per_second=0.5)
    assert served(fair, 100) == ["first"] * 50 + ["second"] * 50


def test_who_comes_back_after_a_pause_is_owed_nothing() -> None:
    idle, busy = Rows("idle", 1, tenant="idle"), Rows("busy", 10_000, tenant="busy")
    fair = of(idle, busy)
    served(fair, 2000)
    fair.remove(idle)
    fair.add(Rows("back", 10_000, tenant="idle"))
    assert 45 < Counter(served(fair, 100))["back"] < 55


def test_a_batch_that_has_no_row_now_is_passed_over_and_asked_again() -> None:
    waits, goes = Rows("waits", 0), Rows("goes", 2)
    fair = of(waits, goes)
    assert served(fair, 1) == ["goes"]
    waits.rows_left = 1
    assert sorted(served(fair, 5)) == ["goes", "waits"]


def test_what_one_may_not_have_is_there_for_another() -> None:
    fair = of(Rows("one", 3), Rows("two", 3))

    def only(name: str) -> Rows | None:
        return fair.take(name, lambda rows: rows.take() if rows.name == name else None, lambda rows: rows.size)

    for _ in range(3):
        for name in ("one", "two"):
            found = only(name)
            assert found is not None
            assert found.name == name
    assert only("one") is None


def test_many_that_have_nothing_are_asked_once() -> None:
    asked: list[str] = []

    def take(rows: Rows) -> Rows | None:
        asked.append(rows.name)
        return rows.take()

    fair = of(*(Rows(f"empty{number}", 0, tenant=str(number % 7)) for number in range(1000)), Rows("full", 500))
    for _ in range(500):
        assert fair.take("x", take, lambda rows: rows.size)
    assert len(asked) <= 500 + 1000
    assert fair.take("x", take, lambda rows: rows.size) is None
    before = len(asked)
    assert fair.take("x", take, lambda rows: rows.size) is None
    assert len(asked) == before


def test_a_batch_that_left_is_not_asked() -> None:
    gone, stays = Rows("gone", 100, deadline=1.0), Rows("stays", 3)
    fair = of(gone, stays)
    fair.review(0.0, rows_per_second=1.0)
    fair.remove(gone)
    assert served(fair, 10) == ["stays"] * 3
    fair.remove(stays)
    assert served(fair, 1) == []


@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(600, 40_000)), min_size=1, max_size=6),
    st.floats(0.05, 5.0),
)
def test_the_server_does_rows_as_soon_as_the_planner_counts_on(jobs: list[tuple[int, int]], rate: float) -> None:
    """An engine that does the rows in the server's order ends each job when the planner foresees it."""
    made = [
        Job(JobId(str(n)), "h", str(n), str(n), str(n), JobKind.BATCH, "", {}, {}, NOW, NOW + timedelta(seconds=due))
        for n, (_, due) in enumerate(jobs)
    ]
    fair = of(*(Rows(str(n), rows, deadline=due) for n, (rows, due) in enumerate(jobs)))
    done = served(fair, sum(rows for rows, _ in jobs))
    for n, job in enumerate(made):
        ahead = sum(jobs[int(first)][0] for first in goes_first(made, job, NOW))
        foreseen = Pace(rate, 0.1, "known", ahead=float(ahead)).seconds_for(jobs[n][0])
        last = len(done) - done[::-1].index(str(n))
        assert last / rate <= foreseen * (1 + 1e-9)
        if len({due for _, due in jobs}) == len(jobs):
            assert last / rate >= foreseen * (1 - 1e-9)


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(1, 5000), st.integers(0, 90_000)),
        max_size=8,
    ),
    st.integers(0, 90_000),
)
def test_every_row_is_served_once(batches: list[tuple[int, str, int, int]], now: int) -> None:
    made = [
        Rows(str(number), rows, tenant=tenant, size=size, deadline=deadline)
        for number, (rows, tenant, size, deadline) in enumerate(batches)
    ]
    fair = of(*made)
    fair.review(now, 3.0)
    assert Counter(served(fair, 1000)) == Counter({str(n): b[0] for n, b in enumerate(batches) if b[0]})


def test_a_batch_whose_row_has_no_room_is_passed_over_and_keeps_its_turn() -> None:
    large, small = Rows("large", 3, tenant="a", size=9000), Rows("small", 9, tenant="b")
    fair, is_full = of(large, small), True

    def take(rows: Rows) -> Rows | None:
        if is_full and rows is large:
            raise KeepsTurnError
        return rows.take()

    def turn() -> str | None:
        fair.wake()
        found = fair.take("x", take, lambda rows: rows.size)
        return None if found is None else found.name

    assert [turn() for _ in range(5)] == ["small"] * 5
    is_full = False
    assert turn() == "large", "the tenant that had nothing is the next"
    is_full, small.rows_left = True, 0
    assert turn() is None
    is_full = False
    assert [turn(), turn(), turn()] == ["large", "large", None]


def test_a_tenant_that_may_have_no_row_is_asked_once_and_keeps_its_turn() -> None:
    batches = [Rows(f"a{number}", 1, tenant="a") for number in range(50)]
    fair, asked, may = of(*batches, Rows("b", 9, tenant="b")), list[str](), set("b")

    def take(rows: Rows) -> Rows | None:
        asked.append(rows.name)
        if rows.tenant not in may:
            raise KeepsTurnError(of_tenant=True)
        return rows.take()

    def turn() -> str | None:
        fair.wake()
        found = fair.take("x", take, lambda rows: rows.size)
        return None if found is None else found.name

    assert [turn() for _ in range(9)] == ["b"] * 9
    assert len(asked) <= 18
    may.add("a")
    assert [turn() for _ in range(51)] == [*(batch.name for batch in batches), None]
