"""Batches of a provider that are refused alike: their rows wait, one is tried now and then, and the others follow."""

from __future__ import annotations

import pytest

from orchestrator.core.model import Job
from orchestrator.policy.row_errors import is_passing
from tests.support.hostedjob import DAY, HOUR, MINUTE, Desk, all_are, plain, row, script

ROWS = 3
REFUSED = {"code": "invalid_request", "message": "Computer says no."}


def holds(desk: Desk, job: Job) -> list[tuple[str, str]]:
    return [(hold.code, hold.message) for hold in desk.store.holds.of(job.id)]


def rest(desk: Desk, job: Job, seconds: float) -> None:
    """Let so much time pass, in which the daemon has its looks."""
    for _ in range(6):
        desk.later(seconds / 6, job)


def refuse_batches(desk: Desk, times: int | None = 1) -> None:
    script(desk, "fails", verb="create", times=times, **REFUSED)


@pytest.fixture
def held(desk: Desk) -> Job:
    """A job whose batch was refused by its validation."""
    desk.backend()
    refuse_batches(desk)
    job = desk.submit(plain(ROWS))
    rest(desk, job, 10 * MINUTE)
    return job


def test_rows_of_a_batch_that_was_refused_wait_in_the_providers_words(desk: Desk, held: Job) -> None:
    assert holds(desk, held) == [("invalid_request", "Computer says no.")]
    assert desk.ends(held) == all_are("pending", ROWS)
    assert desk.attempts(held) == dict.fromkeys(desk.ends(held), 1)
    assert len(desk.batches()) == 1
    assert list(desk.store.quarantine.held(desk.home.identity(), is_passing)) == []


@pytest.mark.long
def test_one_row_is_tried_and_the_others_follow_once_it_is_answered(desk: Desk, held: Job) -> None:
    desk.finish(held)
    assert desk.ends(held) == all_are("succeeded", ROWS)
    assert [shard["rows"] for shard in desk.detail(held)["shards"][1:]] == [1, ROWS - 1]
    assert holds(desk, held) == []


@pytest.mark.long
def test_a_refused_probe_waits_longer_each_time_and_costs_nothing(desk: Desk) -> None:
    desk.backend()
    refuse_batches(desk, times=None)
    job = desk.submit(plain(ROWS))
    for _ in range(48):
        rest(desk, job, HOUR / 2)
    assert desk.ends(job) == all_are("pending", ROWS)
    assert 4 <= len(desk.batches()) <= 10, "15 min, 30, 60 … then each 6 hours of a day"
    assert desk.cost(job) == 0
    assert desk.billed() == {}


@pytest.mark.long
def test_at_the_deadline_they_fail_with_the_code_and_are_in_no_quarantine(desk: Desk) -> None:
    desk.backend()
    refuse_batches(desk, times=None)
    job = desk.submit(plain(ROWS), deadline="6h")
    rest(desk, job, 7 * HOUR)
    desk.finish(job)
    assert desk.ends(job) == all_are("failed: invalid_request", ROWS)
    assert list(desk.store.quarantine.held(desk.home.identity(), is_passing)) == []


def test_settings_that_change_send_them_at_once(desk: Desk, held: Job) -> None:
    desk.daemon.pipeline.settings_changed()
    rest(desk, held, DAY / 4)
    desk.finish(held)
    assert [shard["rows"] for shard in desk.detail(held)["shards"][1:]] == [ROWS]


@pytest.mark.long
def test_rows_that_all_errored_alike_wait_and_one_bad_row_does_not(desk: Desk) -> None:
    desk.backend()
    job = desk.submit([row(f"r{number}", "status:422") for number in range(ROWS)])
    rest(desk, job, 20 * MINUTE)
    assert desk.ends(job) == all_are("pending", ROWS)
    assert [code for code, _ in holds(desk, job)] != []
    other = desk.run([*plain(ROWS), row("odd", "status:422")])
    assert desk.ends(other)["odd"].startswith("failed")


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("model_in_detail", "model_not_found", "model does not exist"),
        ("model_in_errors", "model_not_found", "The model `m` does not exist"),
        ("params_in_base", "400", "invalid params"),
        ("stop_in_detail", "unsupported_parameter", "stop: field not allowed"),
    ],
)
def test_rows_that_a_200_refuses_alike_wait_in_the_providers_words(
    desk: Desk, fault: str, code: str, message: str
) -> None:
    desk.backend()
    job = desk.submit([row(f"r{number}", fault, stop=["."]) for number in range(ROWS)])
    rest(desk, job, 20 * MINUTE)
    assert desk.ends(job) == all_are("pending", ROWS)
    assert holds(desk, job) == [(code, message)]
    assert len(desk.batches()) == 1, "nothing is sent again"


@pytest.mark.long
def test_words_of_an_outage_with_status_200_are_tried_again_and_end(desk: Desk) -> None:
    desk.backend()
    job = desk.run([row("r0", "worker_in_detail:1"), row("r1", "worker_in_detail"), row("r2")])
    ends = desk.ends(job)
    assert (ends["r0"], ends["r2"]) == ("succeeded", "succeeded")
    assert ends["r1"].startswith("failed")
    assert desk.rows(job)["r1"]["error"]["message"] == "no worker is left"
    assert desk.attempts(job) == {"r0": 2, "r1": 3, "r2": 1}
