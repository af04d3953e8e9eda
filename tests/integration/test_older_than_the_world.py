"""A store that is older than its providers: a backup put back, a snapshot, a database without its newest commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import REPAY, CancelCode, Job, RequestState
from orchestrator.engine import manual_actions
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.hostedjob import HOUR, Desk, cost_of, plain, row, script
from tests.support.restoring import Backups, backed_up, lists


@pytest.fixture(params=["sqlite", "postgres"])
def backups(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backups]:
    with backed_up(request, emulator, tmp_path, monkeypatch) as found:
        yield found


def all_paid_once(desk: Desk, job: Job, rows: int = 20) -> None:
    assert list(desk.ends(job).values()) == ["succeeded"] * rows
    assert set(desk.billed().values()) == {1}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("saved", ["built", "planned"])
@pytest.mark.parametrize("later", [0.0, HOUR])
def test_rows_of_batches_that_the_store_has_forgotten_are_adopted(backups: Backups, saved: str, later: float) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    job = desk.submit(plain(20))
    if saved == "planned":
        desk.until(job, lambda: desk.states(job))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 3)
    desk.provider.clock.advance(later)
    backups.put_back("monday")
    desk.finish(job)
    assert len(desk.batches()) == 3
    all_paid_once(desk, job)
    assert len(desk.events(job, "recovered")) == 3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("fault", ["status:429", "status:500"])
def test_a_list_that_fails_is_asked_again_once_for_all_shards(backups: Backups, fault: str) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 2})
    job = desk.submit(plain(20))
    desk.until(job, lambda: desk.states(job))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 10)
    backups.put_back("monday")
    before = lists(desk)
    script(desk, "status", verb="list", times=2, status=int(fault.partition(":")[2]))
    for _ in range(5):
        desk.step(job)
    assert lists(desk) <= before + 4, "the client itself tries again"
    desk.finish(job)
    assert len(desk.batches()) == 10
    all_paid_once(desk, job)
    assert lists(desk) <= before + 5


@pytest.mark.thinned(2, 1)
def test_a_process_lists_once(backups: Backups) -> None:
    desk = backups.desk
    desk.provider.clock.advance(1)
    desk.run([row("r")])
    assert lists(desk) == 0, "a new home has forgotten nothing"
    desk.start_anew()
    for number in range(3):
        desk.provider.clock.advance(1)
        desk.run([row(f"r{number}")])
    assert lists(desk) == 1


# --- jobs that the store has forgotten


def forgotten(backups: Backups, rows: int = 20) -> Path:
    """The file of a job whose batches are out, and which a backup that was put back does not know."""
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    desk.run([row("earlier")])
    backups.save("monday")
    desk.provider.clock.advance(HOUR)
    path = desk.written(jsonl(plain(rows)))
    job = desk.submit(path)
    desk.until(job, lambda: len(desk.batches()) == 4)
    return path


@pytest.mark.thinned(3)
@pytest.mark.parametrize("then", ["at once", "behind another job"])
def test_rows_of_a_job_that_the_store_has_forgotten_are_adopted(backups: Backups, then: str) -> None:
    desk, path = backups.desk, forgotten(backups)
    backups.put_back("monday")
    between = 0
    if then == "behind another job":
        desk.provider.clock.advance(HOUR)
        desk.run([row("between")])
        between = 1
    job = desk.submit(path)
    if between:
        desk.start_anew()
    desk.finish(job)
    assert len(desk.batches()) == 4 + between
    all_paid_once(desk, job)
    assert len(desk.events(job, "recovered")) == 3
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
def test_of_a_forgotten_job_only_the_same_lines_are_adopted(backups: Backups) -> None:
    desk, path = backups.desk, forgotten(backups)
    backups.put_back("monday")
    path.write_bytes(jsonl([*plain(19), row("r19", max_tokens=49)]))
    job = desk.submit(path)
    desk.finish(job)
    assert list(desk.ends(job).values()) == ["succeeded"] * 20
    assert desk.billed() == {f"r{number}": 1 for number in range(19)} | {"r19": 2, "earlier": 1}
    assert len(desk.batches()) == 5
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("ends", ["superseded", "cancelled"])
def test_rows_of_a_job_that_sends_nothing_any_more_are_adopted_by_the_next_one(backups: Backups, ends: str) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    path = desk.written(jsonl(plain(20)))
    first = desk.submit(path)
    desk.until(first, lambda: desk.states(first))
    backups.save("monday")
    desk.until(first, lambda: len(desk.batches()) == 3)
    backups.put_back("monday")
    if ends == "cancelled":
        desk.store.jobs.request_cancel(first.id, CancelCode.USER, "by the user", now())
        desk.finish(first)
    path.write_bytes(jsonl([*plain(19), row("r19", max_tokens=49)]))
    second = desk.submit(path)
    desk.finish(first, second)
    assert list(desk.ends(second).values()) == ["succeeded"] * 20
    assert desk.billed() == {f"r{number}": 1 for number in range(19)} | {"r19": 2}
    assert desk.cost(first) + desk.cost(second) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2, 1)
def test_rows_of_another_home_in_the_same_account_are_its_own(backups: Backups) -> None:
    desk, path = backups.desk, forgotten(backups)
    backups.put_back("monday")
    (desk.home.root / "home.id").write_text("another")
    desk.start_anew()
    job = desk.submit(path)
    desk.finish(job)
    assert len(desk.batches()) == 7


@pytest.mark.thinned(2)
@pytest.mark.parametrize("between", [False, True], ids=["files too", "database alone, behind another job"])
def test_answers_of_a_forgotten_job_that_are_gone_are_repaid_only_if_somebody_says_so(
    backups: Backups, *, between: bool
) -> None:
    desk, path = backups.desk, forgotten(backups)
    desk.finish(desk.store.jobs.newest()[0])
    desk.provider.clock.advance(HOUR)
    assert not desk.files()
    backups.put_back("monday", files=not between)
    if between:
        desk.run([row("between")])
        desk.provider.clock.advance(1)
        desk.start_anew()
    job = desk.submit(path)
    desk.settle(job)
    assert "their answers are gone" in desk.said[-1]
    assert len(desk.batches()) == 4 + between
    desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    desk.finish(job)
    assert len(desk.batches()) == 7 + between
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("saved", ["built", "planned", "sent"])
def test_rows_whose_answers_are_gone_are_not_paid_again_unless_somebody_says_so(backups: Backups, saved: str) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    job = desk.submit(plain(20))
    if saved == "planned":
        desk.until(job, lambda: desk.states(job))
    if saved == "sent":
        desk.until(job, lambda: len(desk.batches()) == 3)
    backups.save("monday")
    desk.finish(job)
    desk.provider.clock.advance(2 * HOUR)
    assert not desk.files()
    paid = desk.cost(job)
    backups.put_back("monday")
    desk.settle(job)
    assert "their answers are gone" in desk.said[-1]
    assert len(desk.batches()) == 3
    desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    desk.finish(job)
    assert len(desk.batches()) == 6
    assert set(desk.billed().values()) == {2}
    assert desk.cost(job) == 2 * paid == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("edit", ["one row", "every row"])
def test_answers_of_a_superseded_job_that_are_gone_are_paid_again_only_if_somebody_says_so(
    backups: Backups, edit: str
) -> None:
    desk = backups.desk
    path = desk.written(jsonl(plain(6)))
    first = desk.submit(path)
    backups.save("monday")
    desk.finish(first)
    desk.provider.clock.advance(2 * HOUR)
    assert not desk.files()
    backups.put_back("monday")
    kept = 5 if edit == "one row" else 0
    path.write_bytes(jsonl([*plain(kept), *(row(f"r{number}", max_tokens=49) for number in range(kept, 6))]))
    second = desk.submit(path)
    desk.settle(first, second)
    assert bool([told for told in desk.said if "their answers are gone" in told]) == bool(kept)
    assert len(desk.batches()) == (1 if kept else 2)
    if kept:
        desk.store.jobs.allow(second.id, **{REPAY: now().isoformat()})
    desk.finish(first, second)
    assert len(desk.batches()) == 2
    forgotten, asked = (cost_of({"lines": [line]}) for line in desk.provider.bill()["batches"].values())
    assert desk.cost(first) + desk.cost(second) == asked + (forgotten if kept else 0)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("told", [False, True], ids=["at once", "once it was told"])
def test_a_cancelled_job_ends_though_its_answers_are_gone(backups: Backups, *, told: bool) -> None:
    desk = backups.desk
    job = desk.submit(plain(8))
    desk.until(job, lambda: len(desk.batches()) == 1)
    backups.save("monday")
    desk.finish(job)
    desk.provider.clock.advance(2 * HOUR)
    assert not desk.files()
    backups.put_back("monday")
    if told:
        desk.settle(job)
        assert "their answers are gone" in desk.said[-1]
    desk.cancel(job)
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"cancelled: cancelled"}
    assert set(desk.billed().values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


LATER = {
    "retried": None,
    "its file again": plain(6, temperature=0),
    "edited": [*plain(5, temperature=0), row("r5", temperature=1)],
    "renamed": plain(6, temperature=0),
    "other requests": plain(6, temperature=1),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("later", LATER)
@pytest.mark.parametrize("behind", [2 * HOUR, 0.0], ids=["long behind its batch", "right behind it"])
def test_lost_answers_of_a_cancelled_job_are_paid_again_only_if_somebody_says_so(
    backups: Backups, behind: float, later: str
) -> None:
    desk = backups.desk
    path = desk.written(jsonl(plain(6, temperature=0)))
    first = second = desk.submit(path)
    desk.until(first, lambda: len(desk.batches()) == 1)
    backups.save("monday")
    desk.finish(first)
    desk.provider.clock.advance(behind)
    backups.put_back("monday")
    desk.cancel(first)
    desk.finish(first)
    assert desk.cost(first) == cost_of(desk.provider.bill())
    desk.start_anew()
    lines = LATER[later]
    if lines is None:
        manual_actions.retry(desk.store, first, [RequestState.CANCELLED], None, manual_actions.USER, now())
    else:
        path.write_bytes(jsonl(lines))
        second = desk.submit(path if later != "renamed" else path.rename(path.with_name("renamed.jsonl")))
    lost = {"edited": 5, "other requests": 0}.get(later, 6)
    if lost:
        desk.settle(second)
        assert f"for {lost} rows of batch" in desk.said[-1]
        assert "their answers are gone" in desk.said[-1]
        assert len(desk.batches()) == 1
        desk.store.jobs.allow(second.id, **{REPAY: now().isoformat()})
    desk.finish(second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert len(desk.batches()) == 2
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())
    if lost == 6:
        third = desk.run([*plain(6, temperature=0), row("more")])
        assert set(desk.ends(third).values()) == {"succeeded"}, "nobody is asked twice"


@pytest.mark.thinned(2)
def test_a_batch_that_has_answered_nothing_has_lost_nothing(backups: Backups) -> None:
    desk = backups.desk
    job = desk.submit(plain(8))
    desk.until(job, lambda: desk.states(job))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 1)
    desk.store.jobs.request_cancel(job.id, CancelCode.USER, "by the user", now())
    desk.finish(job)
    assert not desk.billed()
    desk.provider.clock.advance(2 * HOUR)
    assert not desk.files()
    backups.put_back("monday")
    desk.finish(job)
    all_paid_once(desk, job, 8)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2, 1)
def test_a_job_that_awaits_lost_answers_of_another_is_told_so(backups: Backups) -> None:
    desk = backups.desk
    path = desk.written(jsonl(plain(6, temperature=0)))
    first = desk.submit(path)
    desk.until(first, lambda: len(desk.batches()) == 1)
    backups.save("monday")
    desk.finish(first)
    desk.provider.clock.advance(2 * HOUR)
    backups.put_back("monday")
    path.write_bytes(jsonl([*plain(6, temperature=0), row("new", temperature=0)]))
    second = desk.submit(path)
    desk.settle(first, second)
    desk.said.clear()
    desk.step(second)
    assert "their answers are gone" in desk.said[-1]
    desk.store.jobs.allow(first.id, **{REPAY: now().isoformat()})
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert desk.billed() == dict.fromkeys([f"r{number}" for number in range(6)], 2) | {"new": 1}
    assert desk.cost(first) + desk.cost(second) == cost_of(desk.provider.bill())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("saved", ["built", "planned", "sent", "ended"])
def test_answers_in_the_home_are_not_lost_though_its_database_was_put_back(backups: Backups, saved: str) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    job = desk.submit(plain(20))
    match saved:
        case "planned":
            desk.until(job, lambda: desk.states(job))
        case "sent":
            desk.until(job, lambda: len(desk.batches()) == 3)
        case "ended":
            desk.until(job, lambda: len(desk.batches()) == 3)
            desk.provider.clock.advance(HOUR)
            desk.until(job, lambda: any(state.startswith("ended") for state in desk.states(job)))
    backups.save("monday")
    desk.finish(job)
    desk.provider.clock.advance(2 * HOUR)
    assert not desk.files()
    backups.put_back("monday", files=False)
    desk.finish(job)
    assert not [said for said in desk.said if "gone" in said]
    assert len(desk.batches()) == 3
    all_paid_once(desk, job)
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
def test_answers_of_a_later_state_are_not_taken_for_those_of_another_batch(backups: Backups) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    job = desk.submit(plain(8))
    backups.save("monday")
    desk.finish(job)
    stale = desk.home.results(f"{job.id}.001", "output").read_bytes()
    backups.put_back("monday")
    desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    path = desk.home.results(f"{job.id}.002", "output")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(stale)
    desk.provider.clock.advance(2 * HOUR)
    desk.finish(job)
    all_are_answered = set(desk.ends(job).values()) == {"succeeded"}
    assert all_are_answered
    assert desk.cost(job) == cost_of(desk.provider.bill())
