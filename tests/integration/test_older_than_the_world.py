"""A store that is older than its providers: a backup put back, a snapshot, a database without its newest commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import REPAY, CancelCode, Job
from tests.emulator.client import Emulator
from tests.emulator.driving import jsonl
from tests.support.hostedjob import HOUR, KEY, MODEL, Desk, cost_of, plain, row, script
from tests.support.restoring import (
    OTHER_IDS,
    Backups,
    asked,
    backed_up,
    lists,
    requests_are_adopted_under_other_ids,
)


@pytest.fixture(params=["sqlite", "postgres"])
def backups(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backups]:
    with backed_up(request, emulator, tmp_path, monkeypatch) as found:
        yield found


def all_paid_once(desk: Desk, job: Job, rows: int = 20) -> None:
    assert list(desk.ends(job).values()) == ["succeeded"] * rows
    assert set(desk.billed().values()) == {1}


@pytest.mark.long
@pytest.mark.thinned(4)
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


@pytest.mark.long
@pytest.mark.thinned(4)
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


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("rows", [8, 20])
def test_a_batch_that_is_listed_under_another_id_is_adopted_under_its_own(backups: Backups, rows: int) -> None:
    desk = backups.desk
    desk.backend("openai", limits={"max_rows": 8})
    desk.provider.settings(turnaround_s=[4 * HOUR, 4 * HOUR])
    job = desk.submit(plain(rows))
    desk.until(job, lambda: desk.states(job))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == -(-rows // 8))
    backups.put_back("monday")
    desk.provider.script({"do": "number_id", "match": {"verb": "list"}, "times": None, "lasts": HOUR / 3})
    desk.finish(job)
    assert len(desk.batches()) == -(-rows // 8)
    all_paid_once(desk, job, rows)


@pytest.mark.long
@pytest.mark.thinned(2)
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
    desk.until(job, lambda: len(desk.batches()) == 1 + -(-rows // 8))
    return path


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_forgotten_jobs_batch_is_adopted_once_its_id_is_known(backups: Backups) -> None:
    desk = backups.desk
    path = forgotten(backups)
    backups.put_back("monday")
    desk.provider.settings(turnaround_s=[4 * HOUR, 4 * HOUR])
    desk.provider.script({"do": "number_id", "match": {"verb": "list"}, "times": None, "lasts": HOUR / 3})
    job = desk.submit(path)
    desk.finish(job)
    assert len(desk.batches()) == 1 + 3
    all_paid_once(desk, job)


@pytest.mark.long
@pytest.mark.thinned(4)
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.thinned(4)
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


@pytest.mark.long
@pytest.mark.thinned(2)
def test_rows_of_another_home_in_the_same_account_are_its_own(backups: Backups) -> None:
    desk, path = backups.desk, forgotten(backups)
    backups.put_back("monday")
    (desk.home.root / "home.id").write_text("another")
    desk.start_anew()
    job = desk.submit(path)
    desk.finish(job)
    assert len(desk.batches()) == 7


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_question_about_lost_answers_stays_until_it_is_answered(backups: Backups) -> None:
    desk, path = backups.desk, forgotten(backups)
    desk.finish(desk.store.jobs.newest()[0])
    desk.provider.clock.advance(HOUR)
    backups.put_back("monday")
    job = desk.submit(path)
    desk.settle(job)
    assert "their answers are gone" in desk.said[-1]
    desk.provider.clock.advance(1)
    desk.run([row("between")])
    desk.provider.clock.advance(1)
    desk.start_anew()
    desk.said.clear()
    desk.settle(job)
    assert "their answers are gone" in desk.said[-1]
    assert len(desk.batches()) == 5


@pytest.mark.long
@pytest.mark.thinned(4)
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


@pytest.mark.long
@pytest.mark.thinned(8)
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


# --- rows that have other ids by now


@pytest.mark.long
@pytest.mark.thinned(24)
@pytest.mark.parametrize("ids", OTHER_IDS)
@pytest.mark.parametrize("equal", [False, True], ids=["", "equal requests"])
@pytest.mark.parametrize("edited", [False, True], ids=["", "edited"])
@pytest.mark.parametrize("backend", ["openai", "azure", "mistral"])
def test_requests_of_a_forgotten_job_are_adopted_whatever_their_ids(
    backups: Backups, backend: str, ids: str, *, equal: bool, edited: bool
) -> None:
    backups.desk.backend(backend, limits={"max_rows": 5})
    requests_are_adopted_under_other_ids(backups, ids, equal=equal, edited=edited)


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("rows", [8, 5], ids=["all of a batch", "a part of it"])
def test_another_file_takes_a_forgotten_jobs_batch_only_if_it_has_all_of_its_requests(
    backups: Backups, rows: int
) -> None:
    """The rest belongs to the other job, which would have to pay for it again."""
    desk, path = backups.desk, forgotten(backups, 8)
    backups.put_back("monday")
    other = desk.submit([line | {"custom_id": f"other {line['custom_id']}"} for line in plain(rows)])
    desk.finish(other)
    job = desk.submit(path)
    desk.finish(other, job)
    assert set(desk.ends(other).values()) == set(desk.ends(job).values()) == {"succeeded"}
    assert max(asked(desk).values()) == 2
    assert asked(desk).total() == 1 + 8 + rows
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


@pytest.mark.thinned(4)
@pytest.mark.parametrize("change", ["renamed", "edited"])
def test_a_job_that_was_put_back_before_it_was_built_takes_what_asks_the_same(backups: Backups, change: str) -> None:
    """Its documents may have changed since: an id may be of another text then, and a text may have another id."""
    desk = backups.desk
    folder = desk.folder / "documents"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"Letter {number}.")
    path = desk.folder / "job.yaml"
    path.write_text(
        f"name: letters\ndocuments: documents\nmodels: {{small: {MODEL}}}\n"
        "tasks: [{id: who, prompt: Who wrote this, model: small}]\n"
    )
    earlier = desk.submit([row("earlier")])
    job = desk.submit(path, after=earlier.id)
    desk.finish(earlier)
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 2)
    desk.provider.clock.advance(HOUR)
    backups.put_back("monday")
    if change == "edited":
        (folder / "3.txt").write_text("Another letter.")
    else:
        (folder / "3.txt").rename(folder / "4.txt")
    desk.finish(job)
    assert list(desk.ends(job).values()) == ["succeeded"] * 4
    assert sorted(asked(desk).values()) == [1] * (6 if change == "edited" else 5)
    assert len({found["output"] for found in desk.rows(job).values()}) == 4
    assert sum(desk.cost(one) for one in desk.store.jobs.newest()) == cost_of(desk.provider.bill())


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("why", ["gemini", "deleted"])
@pytest.mark.parametrize("later", [0.0, HOUR])
def test_a_forgotten_jobs_batch_whose_requests_cannot_be_read_is_asked_about(
    backups: Backups, why: str, later: float
) -> None:
    """Google gives no uploaded file back."""
    desk = backups.desk
    if why == "gemini":
        desk.backend("gemini")
    desk.run([row("earlier")])
    backups.save("monday")
    desk.provider.clock.advance(HOUR)
    path = desk.written(jsonl(plain(6)))
    first = desk.submit(path)
    desk.until(first, lambda: len(desk.batches()) == 2)
    desk.provider.clock.advance(later)
    backups.put_back("monday")
    if why == "deleted":
        for file in desk.files():
            if file["purpose"] == "batch":
                delete_file(desk, file["id"])
    job = desk.submit(path)
    desk.settle(job)
    assert "their requests cannot be read" in desk.said[-1]
    assert len(desk.batches()) == 2
    desk.store.jobs.allow(job.id, **{REPAY: now().isoformat()})
    desk.finish(job)
    assert list(desk.ends(job).values()) == ["succeeded"] * 6
    assert len(desk.batches()) == 3


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("later", [0.0, HOUR])
def test_geminis_batches_that_the_store_has_forgotten_are_adopted(backups: Backups, later: float) -> None:
    desk = backups.desk
    desk.backend("gemini", limits={"max_rows": 8})
    job = desk.submit(plain(20))
    desk.until(job, lambda: desk.states(job))
    backups.save("monday")
    desk.until(job, lambda: len(desk.batches()) == 3)
    desk.provider.clock.advance(later)
    backups.put_back("monday")
    desk.finish(job)
    assert len(desk.batches()) == 3
    all_paid_once(desk, job)


def delete_file(desk: Desk, file_id: str) -> None:
    """At the provider, by somebody else."""
    url, headers = f"{desk.provider.url_openai}/files/{file_id}", {"Authorization": f"Bearer {KEY}"}
    urlopen(Request(url, method="DELETE", headers=headers), timeout=60).close()
