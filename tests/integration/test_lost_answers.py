"""Answers that were paid for and collected by a later state of a home, and are gone: told, and repaid on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import REPAY, RequestState
from orchestrator.daemon import manual_actions
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.hostedjob import HOUR, MINUTE, cost_of, plain, row, script
from tests.support.restoring import Backups, backed_up


@pytest.fixture(params=["sqlite", "postgres"])
def backups(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backups]:
    with backed_up(request, emulator, tmp_path, monkeypatch) as found:
        yield found


@pytest.mark.long
@pytest.mark.thinned(6)
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


@pytest.mark.long
@pytest.mark.thinned(10)
@pytest.mark.parametrize("behind", [2 * HOUR, 0.0], ids=["long behind its batch", "right behind it"])
@pytest.mark.parametrize("saved", ["built", "sent"])
@pytest.mark.parametrize("kind", ["mistral", "gemini", "fireworks", "bedrock", "vertex", "scaleway", "cohere"])
def test_answers_that_are_gone_are_told_wherever_files_are_named_by_other_rules(
    backups: Backups, kind: str, saved: str, behind: float
) -> None:
    desk = backups.desk
    desk.provider.settings(min_rows=1)
    desk.backend(kind, limits={"max_rows": 8, "min_rows": 1})
    job = desk.submit(plain(20))
    if saved == "sent":
        desk.until(job, lambda: len(desk.batches()) == 3)
    backups.save("monday")
    desk.finish(job)
    desk.provider.clock.advance(behind)
    backups.put_back("monday")
    for _ in range(16):
        desk.later(5 * MINUTE, job)
    assert "their answers are gone" in desk.said[-1]
    assert len(desk.batches()) == 3
    desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert len(desk.batches()) == 6
    # Such a provider may count no tokens of a batch: then what is lost is booked as an estimate.
    assert desk.cost(job) >= cost_of(desk.provider.bill())


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["bedrock", "vertex", "scaleway", "fireworks", "cohere"])
def test_answers_that_are_late_are_not_taken_for_gone(backups: Backups, kind: str) -> None:
    desk = backups.desk
    desk.provider.settings(min_rows=1)
    desk.backend(kind, limits={"min_rows": 1})
    script(desk, "late_output_id", verb="create", seconds=40 * MINUTE)
    job = desk.submit(plain(6))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 1)
    desk.provider.clock.advance(20 * MINUTE)
    backups.put_back("monday")
    desk.finish(job)
    assert not [told for told in desk.said if "gone" in told]
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert len(desk.batches()) == 1
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.thinned(4)
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.thinned(20)
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


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("saved", ["planned", "sent"])
def test_a_batch_that_has_answered_nothing_has_lost_nothing(backups: Backups, saved: str) -> None:
    desk = backups.desk
    job = desk.submit(plain(8))
    desk.until(job, lambda: desk.states(job))
    if saved == "planned":
        backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 1)
    if saved == "sent":
        backups.save("monday")
    desk.provider.clock.advance(MINUTE)
    desk.cancel(job)
    desk.finish(job)
    assert not desk.billed()
    desk.provider.clock.advance(2 * HOUR)
    assert not desk.files()
    backups.put_back("monday")
    desk.finish(job)
    assert list(desk.ends(job).values()) == ["succeeded"] * 8
    assert set(desk.billed().values()) == {1}
    assert desk.cost(job) == cost_of(desk.provider.bill())


@pytest.mark.long
@pytest.mark.thinned(2)
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
