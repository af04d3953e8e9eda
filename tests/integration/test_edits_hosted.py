"""A job file that is edited while its batches are out, before an emulated provider: paid once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.errors import RefusedError
from orchestrator.core.model import Job, RequestState
from orchestrator.daemon import manual_actions
from orchestrator.pipeline.selection import Scope
from orchestrator.pipeline.succession import Edited
from tests.emulator.driving import chat_line, jsonl
from tests.support.hostedjob import HOUR, MINUTE, MODEL, Desk, cost_of, script

ROWS = 4


@pytest.fixture
def desk(desk_on_each: Desk) -> Desk:
    return desk_on_each


def job_file(
    desk: Desk, more: str = "", *, task: str = "", prompt: str = "Who wrote this", model: str = MODEL
) -> Path:
    """A job file over letters, which is written again with what is changed."""
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for number in range(ROWS):
        if not (letter := folder / f"{number}.txt").exists():
            letter.write_text(f"Letter {number}.")
    path = desk.folder / "job.yaml"
    path.write_text(
        f"name: letters\ndocuments: documents\nmodels: {{small: {model}}}\n{more}\n"
        f"tasks: [{{id: who, prompt: {prompt}, model: small{task}}}]\n"
    )
    return path


def lines(**body: Any) -> list[dict[str, Any]]:
    return [chat_line(f"r{n}", f"what of {n}?", MODEL, **{"max_tokens": 50, **body}) for n in range(ROWS)]


def out(desk: Desk, path: Path) -> Job:
    """A job whose batch is at the provider."""
    job = desk.submit(path)
    desk.settle(job)
    assert desk.states(job) == ["submitted (validating)"]
    return job


def paid_in_full(desk: Desk, *jobs: Job) -> None:
    """The ledger says what the bill says."""
    assert sum(desk.cost(job) for job in jobs) == cost_of(desk.provider.bill())


def all_once(desk: Desk) -> bool:
    billed = desk.billed()
    return len(billed) == ROWS and set(billed.values()) == {1}


# --- edits after which every row is the same request

SAME: dict[str, str] = {
    "deadline": "deadline: 30h",
    "tag": "tags: {team: law}",
    "budget": "budget: 50",
    "two": "deadline: 40h\ntags: {a: b}",
}


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("edit", SAME)
def test_an_edit_that_changes_no_request_pays_nothing_again(desk: Desk, edit: str) -> None:
    first = out(desk, job_file(desk))
    second = desk.submit(job_file(desk, SAME[edit]))
    assert second.id != first.id
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert len(desk.batches()) == 1
    assert all_once(desk)
    assert desk.cost(second) == 0
    assert {row["provenance"]["carried_from"] for row in desk.rows(second).values()} == {first.id}
    paid_in_full(desk, first, second)


@pytest.mark.long
def test_a_late_batch_is_awaited_where_a_new_one_would_be_later(desk: Desk) -> None:
    """Its 95 % are behind the other job's deadline, and those of a new batch still more so."""
    first = out(desk, job_file(desk))
    other = desk.folder / "other.yaml"
    other.write_text(job_file(desk, "deadline: 10h\ntarget: 0.5").read_text().replace("name: letters", "name: other"))
    job_file(desk)
    second = desk.submit(other)
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert len(desk.batches()) == 1
    assert all_once(desk)
    paid_in_full(desk, first, second)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_third_edit_takes_over_what_the_first_job_asked(desk: Desk) -> None:
    jobs = [out(desk, job_file(desk))]
    for tag in ("a", "b", "c"):
        jobs.append(desk.submit(job_file(desk, f"tags: {{x: {tag}}}")))
        desk.settle(*jobs)
    desk.finish(*jobs)
    assert set(desk.ends(jobs[-1]).values()) == {"succeeded"}
    assert all_once(desk)
    paid_in_full(desk, *jobs)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_an_edit_that_is_taken_back_takes_over_as_well(desk: Desk) -> None:
    first = out(desk, job_file(desk))
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    third = desk.submit(job_file(desk))
    assert third.id not in (first.id, second.id)
    desk.finish(first, second, third)
    assert set(desk.ends(third).values()) == {"succeeded"}
    assert all_once(desk)
    paid_in_full(desk, first, second, third)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("body", [{}, {"temperature": 0}, {"temperature": 0.7}], ids=["plain", "greedy", "sampling"])
def test_a_batch_file_that_is_renamed_is_the_same_job(desk: Desk, body: dict[str, Any]) -> None:
    path = desk.written(jsonl(lines(**body)))
    first = out(desk, path)
    second = desk.submit(path.rename(path.with_name("again.jsonl")))
    assert second.id == first.id
    desk.finish(first)
    assert all_once(desk)


def test_a_batch_file_that_is_renamed_in_a_project_that_is_moved_is_the_same_job(desk: Desk) -> None:
    (desk.folder / "project").mkdir()
    path = desk.written(jsonl(lines())).rename(desk.folder / "project/requests.jsonl")
    first = out(desk, path)
    path.rename(path.with_name("again.jsonl"))
    (desk.folder / "project").rename(desk.folder / "moved")
    second = desk.submit(desk.folder / "moved/again.jsonl")
    assert second.id == first.id
    desk.finish(first)
    assert all_once(desk)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_batch_file_that_is_copied_awaits_what_has_one_answer(desk: Desk) -> None:
    content = jsonl([*lines(temperature=0)[:2], *lines()[2:]])
    first = out(desk, desk.written(content))
    second = desk.submit(desk.written(content))
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert desk.billed() == {"r0": 1, "r1": 1, "r2": 2, "r3": 2}
    paid_in_full(desk, first, second)


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("body", [{}, {"temperature": 0}], ids=["plain", "greedy"])
def test_of_a_batch_file_with_one_changed_line_only_that_is_asked(desk: Desk, body: dict[str, Any]) -> None:
    path = desk.written(jsonl(lines(**body)))
    first = out(desk, path)
    changed = lines(**body)
    changed[1]["body"]["messages"][0]["content"] = "something else?"
    path.write_bytes(jsonl(changed))
    second = desk.submit(path)
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert desk.billed() == {"r0": 1, "r1": 2, "r2": 1, "r3": 1}
    paid_in_full(desk, first, second)


@pytest.mark.thinned(2)
def test_a_document_that_changes_does_not_start_a_second_job(desk: Desk) -> None:
    path = job_file(desk)
    first = out(desk, path)
    (desk.folder / "documents" / "1.txt").write_text("Another letter.")
    assert desk.submit(path).id == first.id
    desk.finish(first)
    assert all_once(desk)


@pytest.mark.thinned(2)
def test_a_document_and_a_tag_that_change_ask_that_document(desk: Desk) -> None:
    first = out(desk, job_file(desk))
    (desk.folder / "documents" / "1.txt").write_text("Another letter.")
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert sorted(desk.billed().values()) == [1, 1, 1, 2]
    paid_in_full(desk, first, second)


# --- edits after which nothing is shared: the earlier job is cancelled at once


@dataclass(frozen=True)
class Change:
    before: dict[str, str]
    after: dict[str, str]


CHANGES = {
    "model": Change({}, {"model": "m2"}),
    "prompt": Change({}, {"prompt": "Who sent this"}),
    "sampling": Change({"task": ", temperature: 0.7"}, {"task": ", temperature: 0.7", "more": "tags: {x: a}"}),
    "cache": Change({"task": ", cache: false"}, {"task": ", cache: false", "more": "tags: {x: a}"}),
}


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("edit", CHANGES)
def test_rows_that_are_not_shared_are_asked_anew_and_the_earlier_job_is_cancelled(desk: Desk, edit: str) -> None:
    desk.backends({"openai": {}}, "[prices.m2]\ninput = 4\noutput = 16\nbatch = { input = 2, output = 8 }\n")
    first = out(desk, job_file(desk, **CHANGES[edit].before))
    second = desk.submit(job_file(desk, **CHANGES[edit].after))
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert set(desk.ends(first).values()) == {"cancelled: cancelled"}
    assert len(desk.batches()) == 2
    assert all_once(desk)
    assert desk.store.jobs.get(first.id).cancel_code == "superseded"


@pytest.mark.thinned(2)
def test_a_superseded_job_is_not_retried_beside_the_one_that_has_its_rows(desk: Desk) -> None:
    jobs = [desk.submit(job_file(desk, f"tags: {{x: {tag}}}")) for tag in "abc"]
    desk.settle(*jobs)
    first, _, last = (desk.store.jobs.get(job.id) for job in jobs)
    assert first.finished_at is not None
    cancelled = [RequestState.CANCELLED]
    with pytest.raises(RefusedError, match=f"superseded by job {last.id}"):
        manual_actions.retry(desk.store, first, cancelled, None, manual_actions.USER, now())
    desk.cancel(last)
    desk.finish(last)
    assert manual_actions.retry(desk.store, first, cancelled, None, manual_actions.USER, now()) == ROWS
    desk.finish(first)
    assert set(desk.ends(first).values()) == {"succeeded"}
    assert all_once(desk)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_superseded_job_that_is_retried_takes_what_its_cancelled_successor_has(desk: Desk) -> None:
    desk.backends({"openai": {"limits": {"max_rows": 2}}})
    first = desk.submit(job_file(desk))
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    desk.provider.script({"do": "stuck_in_progress", "share": 0, "match": {"nth": 2}, "times": 1})
    desk.settle(first, second)
    desk.later(HOUR, first, second)
    desk.cancel(second)
    desk.finish(first, second)
    ends = list(desk.ends(second).values())
    assert 0 < ends.count("succeeded") < ROWS
    again(desk, first)
    assert set(desk.ends(first).values()) == {"succeeded"}
    assert all_once(desk)
    paid_in_full(desk, first, second)


@pytest.mark.thinned(2)
def test_a_cancelled_job_that_is_retried_takes_what_a_later_run_has(desk: Desk) -> None:
    first = desk.submit(job_file(desk))
    desk.cancel(first)
    desk.finish(first)
    second = desk.run(job_file(desk, "tags: {x: a}"))
    assert set(desk.ends(second).values()) == {"succeeded"}
    again(desk, first)
    assert set(desk.ends(first).values()) == {"succeeded"}
    assert all_once(desk)
    assert desk.cost(first) == 0


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.parametrize("ends", ["completed", "expired", "cancelled"])
@pytest.mark.parametrize("is_out", [True, False], ids=["in flight", "not sent yet"])
def test_a_cancelled_job_that_is_retried_awaits_what_a_later_run_has_under_way(
    desk: Desk, ends: str, *, is_out: bool
) -> None:
    first = desk.submit(job_file(desk))
    desk.cancel(first)
    desk.finish(first)
    if ends == "expired":
        script(desk, "expires")
    edited = job_file(desk, "tags: {x: a}")
    second = out(desk, edited) if is_out else desk.submit(edited)
    again(desk, first, until_over=False)
    desk.settle(first, second)
    assert len(desk.batches()) == 1
    if ends == "cancelled":
        desk.cancel(second)
    desk.finish(first, second)
    assert set(desk.ends(first).values()) == {"succeeded"}
    assert all_once(desk)
    paid_in_full(desk, first, second)


@pytest.mark.long
def test_a_job_that_is_retried_awaits_what_its_file_is_to_send_from_where_it_was_moved(desk: Desk) -> None:
    (desk.folder / "project").mkdir()
    path = desk.written(jsonl(lines(temperature=0))).rename(desk.folder / "project/requests.jsonl")
    first = desk.submit(path)
    desk.cancel(first)
    desk.finish(first)
    (desk.folder / "project").rename(desk.folder / "moved")
    moved = desk.folder / "moved/requests.jsonl"
    moved.write_bytes(jsonl([*lines(temperature=0)[:3], chat_line("r3", "what else?", MODEL, temperature=0)]))
    second = desk.submit(moved)
    again(desk, first, until_over=False)
    desk.finish(first, second)
    for job in (first, second):
        assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.billed() == {"r0": 1, "r1": 1, "r2": 1, "r3": 2}
    paid_in_full(desk, first, second)


def again(desk: Desk, job: Job, *, until_over: bool = True) -> None:
    """Retry what was cancelled, and let it end."""
    over = desk.store.jobs.get(job.id)
    manual_actions.retry(desk.store, over, [RequestState.CANCELLED], None, manual_actions.USER, now())
    if until_over:
        desk.finish(job)


# --- what is not in flight goes to the new job, and never to both


@pytest.mark.thinned(2)
def test_a_job_that_waits_is_superseded_and_sends_nothing(desk: Desk) -> None:
    first = desk.submit(job_file(desk))
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert set(desk.ends(first).values()) == {"cancelled: cancelled"}
    assert len(desk.batches()) == 1
    assert all_once(desk)


@pytest.mark.thinned(2)
def test_beside_finishes_both_and_still_pays_once(desk: Desk) -> None:
    first = out(desk, job_file(desk))
    second = desk.submit(job_file(desk, "tags: {x: a}"), edited=Edited.BESIDE)
    desk.finish(first, second)
    for job in (first, second):
        assert set(desk.ends(job).values()) == {"succeeded"}
    assert all_once(desk)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_rows_that_the_shared_batch_loses_are_asked_by_the_new_job(desk: Desk) -> None:
    script(desk, "expires")
    first = out(desk, job_file(desk))
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert all_once(desk)
    assert len(desk.batches()) == 2
    paid_in_full(desk, first, second)


@pytest.mark.thinned(2)
def test_a_new_job_that_is_refused_leaves_the_earlier_one_as_it_was(desk: Desk) -> None:
    first = desk.submit(job_file(desk))
    with pytest.raises(RefusedError):
        desk.submit(job_file(desk, "budget: 0.0000001"))
    desk.finish(first)
    assert set(desk.ends(first).values()) == {"succeeded"}
    assert all_once(desk)


@pytest.mark.thinned(2)
def test_a_new_job_that_is_cancelled_ends_both(desk: Desk) -> None:
    first = out(desk, job_file(desk))
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    desk.cancel(second)
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"cancelled: cancelled"}
    assert desk.store.jobs.get(first.id).cancel_code == "superseded"
    assert desk.billed() == {}


@pytest.mark.thinned(2)
def test_only_limited_runs_of_the_same_part_supersede_each_other(desk: Desk) -> None:
    whole = out(desk, job_file(desk))
    part = desk.submit(job_file(desk, "tags: {x: a}"), scope=Scope(2, (), ()))
    desk.finish(whole, part)
    assert set(desk.ends(whole).values()) == set(desk.ends(part).values()) == {"succeeded"}
    assert all_once(desk)


@pytest.mark.long
@pytest.mark.thinned(2)
def test_a_held_job_that_was_edited_does_not_come_back(desk: Desk) -> None:
    script(desk, "fails", verb="create", code="invalid_request", message="Computer says no.")
    first = desk.submit(job_file(desk))
    for _ in range(6):
        desk.later(2 * MINUTE, first)
    assert desk.store.holds.of(first.id)
    second = desk.submit(job_file(desk, "tags: {x: a}"))
    desk.finish(second)
    for _ in range(48):
        desk.later(HOUR, first)
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert set(desk.ends(first).values()) == {"cancelled: cancelled"}
    assert len(desk.batches()) == 2
    assert all_once(desk)


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("under_way", [0, 8 * MINUTE], ids=["at once", "later"])
def test_a_deadline_that_the_batch_misses_ends_it_and_asks_the_rest(desk: Desk, under_way: float) -> None:
    desk.backends({"openai": {}, "flex": {}})
    desk.provider.settings(turnaround_s=[900, 900])
    first = out(desk, job_file(desk))
    desk.later(under_way, first)
    second = desk.submit(job_file(desk, "deadline: 2h"))
    desk.finish(first, second)
    assert set(desk.ends(second).values()) == {"succeeded"}
    carried = {
        name: row["provenance"]["backend"] == "openai"
        for name, row in desk.rows(second).items()
        if row["provenance"]["carried_from"] == first.id
    }
    assert len(desk.billed()) == len(carried) < ROWS
    assert all(carried.values())
    assert {row["provenance"]["backend"] for row in desk.rows(second).values()} <= {"openai", "flex"}
    assert desk.store.jobs.get(first.id).cancel_code == "superseded"
