"""Answers that fail their check go on with the next model of their alias's list; all of them are paid for, once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.backends import LineProblem
from orchestrator.core.model import CancelCode, FinishedRow, Job, RequestState
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.collect import settling
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import RungStanding, Step
from orchestrator.store import Store
from tests.support.handles import handle
from tests.support.stored import NOW, SPEC, added, avoided, ranges, shard

ROWS = 4
PER_ROW = Decimal("0.001")
UP = RungStanding(step=Step("m@2", ("big", "large"), ()))
TOP = RungStanding()
LACKING = RungStanding(lacks=frozenset({"flex"}))
ALONE = RungStanding(lacks=frozenset({"flex"}), is_alone=True)
CODES = ("truncated", "refusal", "content_filter", "empty_answer", "invalid_json", "schema_mismatch")


def line(row: int, kind: str = "good") -> bytes:
    text, finish, refusal, status = "{}", "stop", None, 200
    match kind:
        case "truncated":
            text, finish = '{"a', "length"
        case "refusal":
            text, refusal = "", "No."
        case "content_filter":
            text, finish = '{"a', "content_filter"
        case "empty_answer":
            text = " "
        case "invalid_json":
            text = "hm"
        case "schema_mismatch":
            text = "[]"
        case "refused":
            status = 400
        case "full":
            status = 429
    body: dict[str, Any] = {
        "choices": [{"message": {"content": text, "refusal": refusal}, "finish_reason": finish}], "model": "tiny",
        "usage": {"prompt_tokens": 10, "completion_tokens": 2},
    }  # fmt: skip
    if status != 200:
        body = {"error": {"message": "no", "code": "c"}}
    if kind == "garbled":
        body = {"error": {"message": "no", "code": "c"}, "usage": body["usage"]}
    response = {"status_code": status, "body": body}
    return json.dumps({"custom_id": f"r{row}", "response": response, "error": None}).encode()


class Desk:
    """A store and a home; batches of a job are collected by hand."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.store, self.home, self.jobs = store, Home(folder), 0

    def job(self, **facts: Any) -> Job:
        self.jobs += 1
        return added(self.store, ROWS, f"job-{self.jobs}", **facts)

    def sent(self, job: Job, number: int = 1, **facts: Any) -> Shard:
        """The batch of all rows that wait, over."""
        [found] = ranges(self.store, job)
        new = shard(job, number, rows=found.rows, model=found.model)
        self.store.shards.add(new, found)
        for state in (ShardState.SUBMITTING, ShardState.SUBMITTED, ShardState.ENDED):
            self.store.shards.move(self.store.shards.get(new.id), state)
        return replace(self.store.shards.get(new.id), **{"provider_status": "completed", **facts})

    def collect(
        self,
        job: Job,
        of: Shard,
        lines: list[bytes],
        standing: RungStanding,
        *,
        problems: tuple[LineProblem, ...] = (),
        elsewhere: bool = True,
        is_own: bool = True,
    ) -> settling.ShardTally:
        path = self.home.results(of.id, "output")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(lines))
        where, checks = handle(cost=PER_ROW, is_own=is_own), {"t": OutputCheck({"type": "object"})}
        current = self.store.jobs.get(job.id)
        ended = settling.EndedShard(current, of, where, "m", checks, problems, elsewhere, NOW, standing)
        return settling.collect(self.store, self.home, ended)

    def rows(self, job: Job) -> list[FinishedRow]:
        return list(self.store.rows.finished(job.id))

    def ends(self, job: Job) -> list[str | None]:
        """Each row's code; its state where it has none."""
        return [row.error_code or row.state for row in self.rows(job)]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        yield Desk(tmp_path, store)


def test_bad_answers_go_on_and_the_last_ones_stand(desk: Desk) -> None:
    job = desk.job()
    kinds = ["good", "truncated", "refused", "schema_mismatch"]
    tally = desk.collect(job, desk.sent(job), [line(row, kind) for row, kind in enumerate(kinds)], UP)

    assert str(tally) == "1 failed, 1 succeeded, 2 continue with big or large: 1 schema_mismatch, 1 truncated"
    assert desk.ends(job) == ["succeeded", "pending", "c", "pending"]
    assert desk.store.ledger.spent(job.id) == 4 * PER_ROW

    tally = desk.collect(job, desk.sent(job, 2), [line(3, "refusal"), line(1)], TOP)
    assert str(tally) == "1 failed, 1 succeeded"
    assert desk.ends(job) == ["succeeded", "succeeded", "c", "refusal"]
    assert [(row.model, row.attempt) for row in desk.rows(job)] == [("m", 0), ("m@2", 0), ("m", 0), ("m@2", 0)]
    assert desk.store.ledger.spent(job.id) == 6 * PER_ROW


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("is_own", [True, False], ids=["own", "hosted"])
def test_every_bad_answer_goes_on_wherever_it_was_given(desk: Desk, code: str, is_own: bool) -> None:
    job = desk.job()
    lines = [line(row, code) for row in range(ROWS)]
    tally = desk.collect(job, desk.sent(job), lines, UP, is_own=is_own)
    assert tally.escalated == {code: ROWS}
    assert [row.seq for row in desk.store.rows.waiting(job.id)] == list(range(ROWS))


def test_what_is_no_answer_is_no_bad_answer(desk: Desk) -> None:
    job = desk.job()
    desk.collect(job, desk.sent(job), [line(row, "garbled") for row in range(ROWS)], UP)
    assert desk.ends(job) == ["c"] * ROWS


def test_rows_that_wait_for_room_keep_from_backends_that_lack_their_model(desk: Desk) -> None:
    job = desk.job()
    desk.collect(job, desk.sent(job), [line(row, "full") for row in range(ROWS)], LACKING, is_own=False)
    assert avoided(desk.store, job.id) == {("flex",)}


def test_a_cancelled_job_asks_no_further(desk: Desk) -> None:
    job = desk.job()
    sent = desk.sent(job)
    desk.store.jobs.request_cancel(job.id, CancelCode.USER, "by the user", NOW)
    desk.collect(job, sent, [line(0, "schema_mismatch"), line(1)], UP)
    assert desk.ends(job) == ["schema_mismatch", "succeeded", "cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("on_late", "hours", "end"),
    [("expire", -1, "truncated"), ("expire", 0, "truncated"), ("expire", 1, "pending"), ("expire", None, "pending"),
     ("finish", -1, "pending")],
    ids=str,
)  # fmt: skip
def test_behind_the_deadline_a_bad_answer_stands_where_rows_expire(
    desk: Desk, on_late: str, hours: float | None, end: str
) -> None:
    deadline = None if hours is None else NOW + timedelta(hours=hours)
    job = desk.job(spec={**SPEC, "on_late": on_late}, deadline_at=deadline)
    desk.collect(job, desk.sent(job), [line(row, "truncated") for row in range(ROWS)], UP)
    assert desk.ends(job) == [end] * ROWS


def test_a_batch_that_was_taken_back_has_its_bad_answers_go_on_too(desk: Desk) -> None:
    job = desk.job()
    sent = desk.sent(job, rerouted_at=NOW, provider_status="cancelled")
    desk.collect(job, sent, [line(0, "refusal"), line(1)], UP, is_own=False)
    assert [(row.seq, row.model) for row in desk.store.rows.waiting(job.id)] == [(0, "m@2")]
    assert [(row.seq, row.model) for row in desk.store.rows.waiting(job.id, ("gpu",))] == [(2, "m"), (3, "m")]


@pytest.mark.parametrize(
    ("standing", "avoid"),
    [(TOP, ("gpu",)), (LACKING, ("flex", "gpu")), (ALONE, ("flex",))],
    ids=["none", "one", "alone"],
)
def test_rows_that_are_taken_back_keep_from_backends_that_lack_their_model(
    desk: Desk, standing: RungStanding, avoid: tuple[str, ...]
) -> None:
    job = desk.job()
    desk.collect(job, desk.sent(job, rerouted_at=NOW, provider_status="cancelled"), [], standing, is_own=False)
    assert avoided(desk.store, job.id) == {avoid}


def test_rows_that_leave_our_own_server_may_come_back_to_it(desk: Desk) -> None:
    job = desk.job()
    desk.collect(job, desk.sent(job, rerouted_at=NOW, provider_status="cancelled"), [], TOP, is_own=True)
    assert avoided(desk.store, job.id) == {()}


@pytest.mark.parametrize("standing", [TOP, ALONE], ids=["others", "alone"])
def test_what_one_backend_refuses_for_all_rows_waits_for_another_or_for_a_person(
    desk: Desk, standing: RungStanding
) -> None:
    problems = (LineProblem("model_not_found", "no such model"),)
    job = desk.job()
    desk.collect(
        job, desk.sent(job, provider_status="failed"), [], standing, problems=problems, is_own=False
    )  # fmt: skip
    assert desk.ends(job) == ["pending"] * ROWS
    assert all("gpu" in avoid for avoid in avoided(desk.store, job.id))
    assert [hold.code for hold in desk.store.holds.of(job.id)] == ["model_not_found"]


@pytest.mark.long
@settings(max_examples=3 * settings().max_examples)
@given(kinds=st.lists(st.sampled_from(["good", "refused", "full", "missing", *CODES]), min_size=ROWS, max_size=ROWS))
# The row that was answered, or that waits for room, has left the batch when it is collected again.
@example(kinds=["refused", "refused", "missing", "truncated"])
@example(kinds=["refused", "refused", "missing", "full"])
def test_doing_it_again_after_a_kill_loses_nothing_and_books_nothing_twice(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("again")
    lines = [line(row, kind) for row, kind in enumerate(kinds) if kind != "missing"]
    with Store.open(f"sqlite:///{folder / 'orch.db'}") as store:
        desk = Desk(folder, store)
        job = desk.job()
        sent = desk.sent(job)
        desk.collect(job, sent, lines, UP)
        once = desk.rows(job), store.ledger.spent(job.id), store.ledger.totals("job")
        desk.collect(job, sent, lines, UP)
        assert (desk.rows(job), store.ledger.spent(job.id), store.ledger.totals("job")) == once

        escalated = {row for row, kind in enumerate(kinds) if kind in CODES}
        waits = {row.seq: row.model for row in store.rows.waiting(job.id)}
        missing = {row for row, kind in enumerate(kinds) if kind == "missing"}
        if {"refused", "missing"} >= set(kinds) and kinds.count("refused") > 1:
            held = {row.seq for row in store.rows.waiting(job.id, ("gpu",))}
            assert held == set(range(ROWS)), "all are refused alike: none has failed"
            return
        assert waits == dict.fromkeys(escalated, "m@2") | dict.fromkeys(missing, "m")
        assert store.ledger.spent(job.id) == PER_ROW * len(lines)
        done = {row.seq for row in desk.rows(job) if row.state is not RequestState.PENDING}
        assert done == set(range(ROWS)) - escalated - missing


def test_collecting_a_refused_batch_again_holds_no_rows_back(desk: Desk) -> None:
    problems = tuple(LineProblem("invalid_request", "bad", number) for number in (1, 2))
    job = desk.job()
    sent = desk.sent(job, provider_status="failed")
    for _ in range(2):
        desk.collect(job, sent, [], TOP, problems=problems, is_own=False)
        assert desk.ends(job) == ["invalid_request"] * 2 + ["pending"] * 2
        assert desk.store.holds.of(job.id) == []
