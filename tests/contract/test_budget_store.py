"""Budgets that jobs share, on each database: what they count, what they let through, and two processes at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orchestrator.core.errors import RefusedError
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.budget import SharedBudgets
from orchestrator.policy.budgets import BudgetMark
from orchestrator.policy.sharding import Range
from orchestrator.settings import config
from orchestrator.settings.discovery import Place
from orchestrator.store import Store
from orchestrator.store.database import Database
from tests.support.stored import NOW, job, row, settle, shard, sharded, succeeded

MONTH = datetime(2026, 11, 1, tzinfo=UTC)
# A dollar for a thousand tokens of either kind; the upstream costs a dollar a second.
BACKENDS = """
[backends.openai]
kind = "openai"
api_key_env = "OPENAI_KEY"
[backends.gpu]
upstreams = ["http://127.0.0.1:8000/v1"]
cost_per_hour = 3600
[backends.spare]
upstreams = ["http://127.0.0.1:8001/v1"]
idle = true
[prices.m]
input = 2000
output = 2000
batch = {input = 1000, output = 1000}
"""
LEGAL = '[[budgets]]\nname = "legal"\namount = 10\nperiod = "month"\ntag = "team=legal"\n'
ALL = '[[budgets]]\nname = "all"\namount = 12\nperiod = "month"\n'


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Periods go by this machine's clocks."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Bench:
    """A store, its budgets by an orch.toml, and a clock to be set."""

    def __init__(self, store: Store, url: str, folder: Path, budgets: str) -> None:
        path = folder / "orch.toml"
        path.write_text(BACKENDS + budgets)
        self.store = store
        self.url = url
        self.now = NOW
        self.config = config.load(Place(path, folder, "sqlite:///x", 1.0))
        self.budgets = self.another()

    def another(self) -> SharedBudgets:
        """The same budgets as another process sees them."""
        return SharedBudgets(self.store, self.config, lambda: self.now)

    def job(self, job_id: str, team: str | None = "legal", **facts: Any) -> Job:
        new = job(job_id, **facts)
        self.store.jobs.add(new, {} if team is None else {"team": team, "client": "x"})
        self.store.rows.add(new.id, [row(seq) for seq in range(3)], {}, NOW)
        return new

    def shard(self, of: Job, number: int = 1, state: ShardState = ShardState.PENDING, **facts: Any) -> Shard:
        """A shard in a state, without rows; at most $2 unless said otherwise (1.5 x 1,000 + 500 tokens)."""
        given = {"backend": "openai", "tokens": 1000, "max_output": 500, "state": state}
        new = shard(of, number, **{**given, **facts})
        self.store.shards.add(new, Range(new.endpoint, "none", 0, 0, rows=0, bytes=0))
        return new

    def spend(self, of: Job, cost: str, at: datetime) -> None:
        """Book the cost of one row."""
        settle(self.store, sharded(self.store, of, 90, state=ShardState.COLLECTED), succeeded(0, cost), now=at)


Make = Callable[[str], Bench]


@pytest.fixture
def make(store: Store, store_url: str, tmp_path: Path) -> Make:
    return lambda budgets: Bench(store, store_url, tmp_path, budgets)


def test_sums_are_of_the_period_and_the_tag(make: Make) -> None:
    bench = make("")
    one, two, three = bench.job("a"), bench.job("b", "sales"), bench.job("c", None)
    bench.spend(one, "1", MONTH)
    bench.spend(two, "2", MONTH - timedelta(microseconds=1))
    bench.spend(three, "4.000000000001", NOW)
    paid, december = bench.store.ledger.paid, datetime(2026, 12, 1, tzinfo=UTC)
    assert paid(MONTH, december, None) == Decimal("5.000000000001")
    assert paid(MONTH - timedelta(days=1), NOW, None) == 3
    assert paid(MONTH, None, ("team", "legal")) == 1
    assert paid(MONTH, None, ("team", "sales")) == paid(MONTH, None, ("client", "legal")) == 0


def test_what_may_be_booked_yet_is_what_was_meant_to_be_sent_and_is_not_collected(make: Make) -> None:
    bench = make("")
    one, other = bench.job("a"), bench.job("b", "sales", home="elsewhere")
    for number, state in enumerate(ShardState, 1):
        bench.shard(one, number, state)
    bench.shard(other, 1, ShardState.ENDED)
    found = bench.store.ledger.unpaid(("team", "legal"))
    assert [each.state for each in found] == [ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED]
    assert found[0] == bench.store.shards.get(found[0].id)
    assert {each.job_id for each in bench.store.ledger.unpaid(None)} == {"a", "b"}


def test_jobs_share_a_budget_and_wait_for_each_other(make: Make) -> None:
    bench = make(LEGAL + ALL)
    one, two, free = bench.job("a"), bench.job("b"), bench.job("c", "sales")
    bench.spend(one, "5", NOW)
    flying = bench.shard(one, 1, ShardState.SUBMITTED)
    assert bench.budgets.no_room(two, bench.shard(two)) is None
    second = bench.shard(two, 2, tokens=2000, max_output=501)
    told = bench.budgets.no_room(two, second)
    assert told == (
        "this batch may cost up to $3.51, and $5.00 of the $10.00 of budget legal for the month is spent, up to "
        "$2.00 more in flight; it continues when batches settle for less, or when the "
        "budget renews at 2026-12-01 00:00"
    )
    assert bench.budgets.left(one) == 5, "its own batch is counted by who asks"
    assert (bench.budgets.left(two), bench.budgets.left(free)) == (3, 5)
    assert bench.budgets.no_room(free, bench.shard(free, tokens=2000, max_output=501)) is None, "12 allow it"
    bench.store.shards.move(flying, ShardState.ENDED)
    assert bench.budgets.no_room(two, second) == told, "it is booked when it is collected"
    bench.store.shards.move(bench.store.shards.get(flying.id), ShardState.COLLECTED)
    assert bench.budgets.no_room(two, second) is None


def test_a_held_batch_goes_when_the_month_is_over(make: Make) -> None:
    bench = make(LEGAL)
    one = bench.job("a")
    bench.spend(one, "9", NOW)
    waiting = bench.shard(one)
    assert "renews at 2026-12-01 00:00" in str(bench.budgets.no_room(one, waiting))
    bench.now = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
    assert bench.budgets.no_room(one, waiting) is not None
    bench.now += timedelta(seconds=1)
    assert bench.budgets.no_room(one, waiting) is None


def test_what_fits_into_no_month_or_has_no_bound_is_refused(make: Make) -> None:
    bench = make(LEGAL)
    one, free = bench.job("a"), bench.job("b", None)
    with pytest.raises(RefusedError, match=r"may cost up to \$10\.01, more than the \$10\.00 of budget legal"):
        bench.budgets.no_room(one, bench.shard(one, 1, tokens=6000, max_output=1001))
    with pytest.raises(RefusedError, match="job a counts against budget legal, and has rows with unlimited answers"):
        bench.budgets.no_room(one, bench.shard(one, 2, max_output=None))
    assert bench.budgets.no_room(free, bench.shard(free, max_output=None)) is None
    assert bench.budgets.left(free) is None


@pytest.mark.parametrize(
    ("flying", "told"),
    [
        ({"max_output": None}, "b.001 is in flight, with unlimited answers"),
        ({"backend": "gone"}, "orch.toml has no gone, where b.001 is"),
        ({"model": "unknown-model"}, "the cost of b.001 is unknown: "),
    ],
    ids=["no bound", "a backend of another orch.toml", "no price"],
)
def test_beside_what_nobody_can_bound_nothing_is_sent(make: Make, flying: dict[str, Any], told: str) -> None:
    bench = make(LEGAL)
    one, other = bench.job("a"), bench.job("b")
    bench.shard(other, 1, ShardState.SUBMITTED, **flying)
    for backend in ("openai", "gpu"):
        waiting = bench.shard(one, 1 if backend == "gpu" else 2, backend=backend)
        assert told in str(bench.budgets.no_room(one, waiting))
    assert bench.budgets.no_room(one, bench.shard(one, 3, backend="spare")) is None, "it costs nothing"
    assert bench.budgets.left(one) == 0
    [standing] = bench.budgets.standings()
    assert told in str(standing.unbounded)
    assert standing.mark is BudgetMark.STOPPED


def test_what_is_paid_by_the_hour_is_stopped_in_time_and_not_started_too_late(make: Make) -> None:
    bench = make(LEGAL)
    one, two = bench.job("a"), bench.job("b")
    running = bench.shard(one, 1, ShardState.SUBMITTED, backend="gpu", max_output=None, provider_seconds=3.0)
    bench.shard(two, 1, ShardState.SUBMITTED)
    [standing] = bench.budgets.standings()
    assert (standing.spent, standing.in_flight) == (3, 4), (
        "three seconds, two more to stop, and a batch of two dollars"
    )
    beside = bench.shard(two, 2, backend="gpu", max_output=None)
    assert bench.budgets.no_room(two, beside) is None
    assert bench.budgets.used_up(one, [running]) is None
    bench.store.shards.note(running, provider_seconds=6.0)
    told = bench.budgets.used_up(one, [running])
    assert told is not None
    assert told.startswith("budget legal reached: $6.00 of the $10.00 of budget legal for the month is spent")
    assert bench.budgets.no_room(two, beside) == told, "held, where the other is stopped"
    assert bench.budgets.used_up(two, [beside]) is None, "nothing of it runs by the hour"
    assert bench.budgets.used_up(bench.job("c", cancel_requested_at=NOW), [running]) is None


def test_an_hour_that_no_batch_runs_up_yet_needs_room_to_be_stopped(make: Make) -> None:
    bench = make(LEGAL)
    one = bench.job("a")
    bench.spend(one, "8", NOW)
    assert "reached" in str(bench.budgets.no_room(one, bench.shard(one, 1, backend="gpu", max_output=None)))


def test_a_mark_is_told_once_a_job_and_period(make: Make) -> None:
    bench = make(LEGAL)
    one, two, free = bench.job("a"), bench.job("b"), bench.job("c", None)

    def warned(which: Job) -> list[str]:
        bench.budgets.warn(which)
        return [event.reason for event in bench.store.jobs.events(which.id) if event.kind == "budget"]

    assert warned(one) == []
    bench.spend(one, "8", NOW)
    first = (
        "budget legal, month until 2026-12-01 00:00: $8.00 of the $10.00 of budget legal for the month is spent (80%)"
    )
    assert warned(one) == [first]
    bench.spend(two, "1", NOW)
    assert warned(one) == [first]
    assert len(warned(two)) == 1
    assert warned(free) == []
    bench.now += timedelta(days=20)
    assert warned(one) == [first]
    third = bench.job("d")
    bench.spend(third, "9", bench.now)
    assert len(warned(one)) == 2


@pytest.mark.long
def test_days_that_were_summed_up_before_are_not_lost(make: Make) -> None:
    """A process asks on through the month while its ledger grows; another that starts then finds the same."""
    bench = make(ALL)
    for day in range(0, 36, 3):
        bench.now = MONTH + timedelta(days=day)
        bench.spend(bench.job(f"{day:02d}"), "0.5", bench.now - timedelta(hours=20))
        bench.spend(bench.job(f"{day:02d}-now"), "0.25", bench.now)
        [kept], [fresh] = bench.budgets.standings(), bench.another().standings()
        since = datetime(2026, 12 if bench.now.month == 12 else 11, 1, tzinfo=UTC)
        assert kept == fresh
        assert kept.spent == bench.store.ledger.paid(since, None, None)


def test_a_line_that_is_committed_after_newer_ones_is_counted(make: Make) -> None:
    """Two homes on Postgres: one takes its numbers first and commits last."""
    bench = make(ALL)
    one, two = bench.job("a"), bench.job("b")
    late = bench.shard(one, 1, ShardState.ENDED)
    bench.spend(two, "1", NOW)
    assert [(each.spent, each.in_flight) for each in bench.budgets.standings()] == [(1, 2)]
    with closing(Database(bench.url)) as database, database.write() as tx:
        columns = "id, job_id, seq, shard_id, at, kind, backend, model, input_tokens, cached_tokens, output_tokens"
        values = f"0, 'a', 0, '{late.id}', {int(NOW.timestamp() * 1e6)}, 'settled', 'openai', 'm', 1, 0, 1"
        tx.execute(text(f"INSERT INTO ledger ({columns}, cost, price_source, estimated) VALUES "
                        f"({values}, 1500000000000, 'by hand', false)"))  # fmt: skip
    bench.store.shards.move(late, ShardState.COLLECTED)
    assert [(each.spent, each.in_flight) for each in bench.budgets.standings()] == [(Decimal("2.5"), 0)]


class Process:
    """One of two that want to send: look, commit the intent, look again, and then POST or step back."""

    def __init__(self, bench: Bench, of: Job) -> None:
        self._bench, self._job = bench, of
        self._budgets = bench.another()
        self._id = bench.shard(of, tokens=4000, max_output=0).id
        self._may = False
        self.sent = False
        self.steps: list[Callable[[], None]] = [self._look, self._intend, self._look_again]

    def _look(self) -> None:
        self._may = self._budgets.no_room(self._job, self._shard) is None

    def _intend(self) -> None:
        if self._may:
            self._bench.store.shards.move(self._shard, ShardState.SUBMITTING)

    def _look_again(self) -> None:
        if not self._may:
            return
        if self._budgets.no_room(self._job, self._shard) is None:
            self._bench.store.shards.move(self._shard, ShardState.SUBMITTED)
            self.sent = True
        else:
            self._bench.store.shards.move(self._shard, ShardState.PENDING)

    @property
    def _shard(self) -> Shard:
        return self._bench.store.shards.get(self._id)


@pytest.mark.long
def test_two_processes_never_both_slip_through(make: Make) -> None:
    """Every order of their steps, each with a budget that has room for one: one sends in the end, never both."""
    orders = list(combinations(range(6), 3))
    table = '[[budgets]]\nname = "b{0}"\namount = 10\nperiod = "month"\ntag = "team=t{0}"\n'
    bench = make("".join(table.format(number) for number in range(len(orders))))
    for number, mine in enumerate(orders):
        one, two = (Process(bench, bench.job(f"{number}-{name}", f"t{number}")) for name in "ab")
        steps = [iter(one.steps), iter(two.steps)]
        for turn in range(6):
            next(steps[0] if turn in mine else steps[1])()
        assert not (one.sent and two.sent)
        for step in one.steps if not (one.sent or two.sent) else ():
            step()
        assert one.sent != two.sent
