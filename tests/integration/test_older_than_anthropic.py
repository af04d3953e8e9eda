"""A store that is older than Anthropic, whose list does not say whose a batch is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import REPAY
from tests.emulator.client import Emulator
from tests.support.hostedjob import DAY, HOUR, foreign_batch, plain, row
from tests.support.restoring import (
    OTHER_IDS,
    Backups,
    asked,
    backed_up,
    batches_are_adopted,
    each_answer_is_its_rows,
    lists,
    requests_are_adopted_under_other_ids,
)


@pytest.fixture(params=["sqlite", "postgres"])
def backups(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backups]:
    with backed_up(request, emulator, tmp_path, monkeypatch) as found:
        found.desk.backend("claude", limits={"max_rows": 8})
        yield found


@pytest.mark.long
@pytest.mark.thinned(24)
@pytest.mark.parametrize("saved", ["built", "planned", "behind another job"])
@pytest.mark.parametrize("files", [True, False], ids=["whole", "database alone"])
@pytest.mark.parametrize("later", [0.0, HOUR])
def test_rows_of_batches_that_the_store_has_forgotten_are_adopted(
    backups: Backups, saved: str, later: float, *, files: bool
) -> None:
    job = batches_are_adopted(backups, saved, later, files=files)
    assert len(backups.desk.events(job, "recovered")) == 3


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("edited", [True, False], ids=["edited", "cut anew"])
def test_each_answer_is_that_of_its_row_however_batches_are_made_now(backups: Backups, *, edited: bool) -> None:
    """A forgotten job's file has other lines by now, or its rows go out in other batches."""
    each_answer_is_its_rows(backups, "claude", edited=edited)


@pytest.mark.long
@pytest.mark.thinned(16)
@pytest.mark.parametrize("ids", OTHER_IDS)
@pytest.mark.parametrize("equal", [False, True], ids=["", "equal requests"])
@pytest.mark.parametrize("edited", [False, True], ids=["", "edited"])
def test_requests_of_a_forgotten_job_are_adopted_whatever_their_ids(
    backups: Backups, ids: str, *, equal: bool, edited: bool
) -> None:
    backups.desk.backend("claude", limits={"max_rows": 5})
    requests_are_adopted_under_other_ids(backups, ids, equal=equal, edited=edited)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_store_that_has_forgotten_nothing_lists_nothing(backups: Backups) -> None:
    desk = backups.desk
    for number in range(3):
        desk.run([row(f"r{number}")])
        desk.start_anew()
    assert lists(desk) == 0


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("deadline", [None, "3h"])
def test_an_unknown_batch_that_runs_holds_rows_no_longer_than_the_plan_allows(
    backups: Backups, deadline: str | None
) -> None:
    desk = backups.desk
    desk.run([row("earlier")])
    desk.provider.settings(turnaround_s=[20 * HOUR, 20 * HOUR])
    job = desk.submit(plain(6), deadline=deadline)
    backups.save("monday")
    foreign_batch(desk, 6)
    backups.put_back("monday")
    desk.settle(job)
    assert len(desk.batches()) == 2
    assert "runs at claude" in desk.held(job)[0]
    desk.provider.settings(turnaround_s=[600, 600])
    desk.finish(job)
    assert list(desk.ends(job).values()) == ["succeeded"] * 6
    assert len(desk.batches()) == 3
    took = (desk.store.jobs.get(job.id).finished_at - job.created_at).total_seconds()
    assert took > 19 * HOUR if deadline is None else took < 3 * HOUR


@pytest.mark.thinned(2)
def test_a_batch_that_cannot_be_all_ours_holds_nothing(backups: Backups) -> None:
    desk = backups.desk
    desk.run([row("earlier")])
    job = desk.submit(plain(6))
    backups.save("monday")
    foreign_batch(desk, 7)
    backups.put_back("monday")
    desk.settle(job)
    assert len(desk.batches()) == 3


@pytest.mark.thinned(2)
def test_answers_that_are_no_longer_kept_are_repaid_only_if_somebody_says_so(backups: Backups) -> None:
    desk = backups.desk
    job = desk.submit(plain(6))
    backups.save("monday")
    desk.finish(job)
    desk.provider.clock.advance(30 * DAY)
    backups.put_back("monday")
    desk.settle(job)
    assert "their answers are gone" in desk.said[-1]
    assert len(desk.batches()) == 1
    desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    desk.finish(job)
    assert len(desk.batches()) == 2


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_kill_while_a_batch_is_undecided_forgets_nothing(backups: Backups) -> None:
    """Another job may send meanwhile: the store is known to be older all the same."""
    desk = backups.desk
    desk.run([row("earlier")])
    job = desk.submit(plain(8))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 2)
    backups.put_back("monday")
    desk.settle(job)
    other = desk.submit([row("other")])
    desk.settle(job, other)
    assert len(desk.batches()) == 3
    desk.start_anew()
    desk.finish(job, other)
    assert len(desk.batches()) == 3
    assert set(asked(desk).values()) == {1}
