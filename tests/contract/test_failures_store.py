"""Failures in the store: since when a document fails for the same reason, and what a person has acknowledged."""

from __future__ import annotations

from datetime import datetime

import pytest

from orchestrator.core.fail_on import Failing
from orchestrator.core.model import CancelCode, Job, JobId, RequestState
from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from orchestrator.store.failures import CHUNK, Failure, FailureReason
from tests.support.stored import NOW, failed, job, later, row, settle, sharded, succeeded

ENDS = {"good": succeeded, "bad": lambda seq: failed(seq, "refusal"), "worse": lambda seq: failed(seq, "http_500")}


def night(number: int) -> datetime:
    return later(24 * number)


def run(store: Store, number: int, *ends: str, series: str = "series") -> Job:
    """A night's run whose rows end like this; what is `open` never runs, and a document that is `gone` has no row."""
    new = job(f"{series}-{number}", series=series, created_at=night(number))
    store.jobs.add(new, {})
    there = [row(seq) for seq, end in enumerate(ends) if end != "gone"]
    store.rows.add(new.id, there, {}, night(number))
    store.jobs.mark_built(new.id, night(number))
    outcomes = [ENDS[end](seq) for seq, end in enumerate(ends) if end in ENDS]
    settle(store, sharded(store, new, state=ShardState.ENDED), *outcomes, now=night(number))
    store.rows.release(store.shards.of_job(new.id)[0].id, count_attempt=False)
    store.rows.end_open(new.id, RequestState.CANCELLED, "cancelled", "by the user", night(number))
    store.failures.trace(new)
    return new


def since(store: Store, of: Job) -> dict[str, datetime]:
    listed = [one for one in store.failures.of_home("home", of.series) if one.job == of.id]
    return {one.document: one.since for one in listed}


def counted(store: Store, of: Job) -> Failing:
    return store.failures.of_jobs([of.id])[of.id]


CHAINS = {
    "the first night": (["bad"], 1),
    "since the night before": (["bad", "bad"], 1),
    "for three nights": (["bad", "bad", "bad"], 1),
    "another reason": (["bad", "worse"], 2),
    "well in between": (["bad", "good", "bad"], 3),
    "another reason in between": (["bad", "worse", "bad"], 3),
    "a night that was ended before": (["bad", "open", "bad"], 1),
    "a night without the document": (["bad", "gone", "bad"], 1),
    "after a night that was ended before": (["open", "bad"], 2),
}


@pytest.mark.parametrize(("ends", "began"), CHAINS.values(), ids=CHAINS.keys())
def test_a_failure_is_known_since_it_began(store: Store, ends: list[str], began: int) -> None:
    for number, end in enumerate(ends, 1):
        last = run(store, number, end, "good")
    assert since(store, last) == {"d0": night(began)}
    known = began < len(ends)
    assert counted(store, last) == (Failing(known=1, since=night(began)) if known else Failing(new=1))
    code = {"bad": "refusal", "worse": "http_500"}[ends[-1]]
    assert store.failures.known(last, {"r0": code}) == ({"r0"} if known else frozenset())


def cancel(store: Store, of: Job) -> None:
    assert store.jobs.request_cancel(of.id, CancelCode.USER, "by the user", of.created_at)
    store.jobs.finish(of.id, "", of.created_at)


def test_a_failure_of_a_cancelled_run_is_new_in_the_next_one(store: Store) -> None:
    run(store, 1, "good", "bad")
    cancel(store, run(store, 2, "bad", "bad"))
    last = run(store, 3, "bad", "bad")
    assert counted(store, last) == Failing(new=1, known=1, since=night(1))
    assert store.failures.known(last, {"r0": "refusal", "r1": "refusal"}) == {"r1"}


def test_a_failure_of_a_cancelled_run_stays_acknowledged(store: Store) -> None:
    cancel(store, run(store, 1, "bad", "good"))
    assert store.failures.acknowledge(failures(store), "a test page", night(1)) == 1
    assert counted(store, run(store, 2, "bad", "good")) == Failing(acknowledged=1)


def test_a_job_file_knows_nothing_of_another(store: Store) -> None:
    run(store, 1, "bad")
    assert counted(store, run(store, 2, "bad", series="other")) == Failing(new=1)


def test_it_is_known_when_the_run_that_had_it_first_is_gone(store: Store) -> None:
    first = run(store, 1, "bad")
    run(store, 2, "bad")
    store.jobs.finish(first.id, "/out", NOW)
    assert store.removals.forget(first.id)
    assert counted(store, run(store, 3, "bad")) == Failing(known=1, since=night(1))


def test_rows_of_a_time_that_said_nothing_of_it_are_followed_back(store: Store) -> None:
    for number in (1, 2):
        store.rows.retry(run(store, number, "bad").id, [])
    with store._database.write() as tx:
        tx.exec_driver_sql("UPDATE requests SET failed_since = NULL")
    assert counted(store, run(store, 3, "bad")) == Failing(known=1, since=night(1))


@pytest.mark.long
def test_more_failures_than_are_looked_at_at_once(store: Store) -> None:
    ends = ["bad"] * (2 * CHUNK + 7)
    run(store, 1, *ends)
    last = run(store, 2, *ends, "bad")
    assert counted(store, last) == Failing(new=1, known=len(ends), since=night(1))


def test_a_retry_that_fails_again_is_since_the_same_night(store: Store) -> None:
    run(store, 1, "bad")
    last = run(store, 2, "bad")
    store.rows.retry(last.id, [RequestState.FAILED])
    assert counted(store, last) == Failing()
    settle(store, sharded(store, last, 2, state=ShardState.ENDED), failed(0, "refusal"))
    store.failures.trace(last)
    assert counted(store, last) == Failing(known=1, since=night(1))


def test_reasons_tell_what_is_new_and_what_is_not(store: Store) -> None:
    run(store, 1, "bad", "good", "good", "good")
    last = run(store, 2, "bad", "bad", "worse", "open")
    assert store.failures.reasons(last.id) == [
        FailureReason("refusal", "no", 2, 1, night(1), "d0", True),
        FailureReason("cancelled", "by the user", 1, 1, None, "d3"),
        FailureReason("http_500", "no", 1, 1, None, "d2"),
    ]


def failures(store: Store) -> list[Failure]:
    return list(store.failures.of_home("home"))


def test_what_a_person_has_acknowledged_is_so_until_it_ends(store: Store) -> None:
    first = run(store, 1, "bad", "bad")
    assert store.failures.acknowledge(failures(store)[:1], "a test page", night(1)) == 1
    assert counted(store, first) == Failing(new=1, acknowledged=1)
    second = run(store, 2, "bad", "bad")
    assert counted(store, second) == Failing(known=1, acknowledged=1, since=night(1))
    [one, other] = failures(store)
    assert (one.status, one.acknowledged_at, one.note) == ("acknowledged", night(1), "a test page")
    assert (other.status, other.note) == ("known", None)
    # It was answered in between, so this is another failure; and so is one for another reason.
    run(store, 3, "good", "good")
    assert counted(store, run(store, 4, "bad", "good")) == Failing(new=1)
    store.failures.acknowledge(failures(store), None, night(4))
    assert counted(store, run(store, 5, "worse", "good")) == Failing(new=1)


def test_what_was_acknowledged_is_taken_back(store: Store) -> None:
    last = run(store, 1, "bad", "bad")
    store.failures.acknowledge(failures(store), None, night(1))
    assert store.failures.acknowledge(failures(store), "again", night(1)) == 0
    assert [one.note for one in failures(store)] == ["again", "again"]
    assert store.failures.take_back(failures(store)[1:]) == 1
    assert store.failures.take_back(failures(store)[1:]) == 0
    assert counted(store, last) == Failing(new=1, acknowledged=1)


def test_with_the_last_job_of_a_file_goes_what_was_acknowledged(store: Store) -> None:
    jobs = [run(store, number, "bad") for number in (1, 2)]
    store.failures.acknowledge(failures(store), None, night(2))
    for number, one in enumerate(jobs, 1):
        store.jobs.finish(one.id, "/out", NOW)
        assert store.removals.forget(one.id)
        with store._database.read() as tx:
            assert tx.exec_driver_sql("SELECT count(*) FROM acknowledgements").scalar() == 2 - number
    assert counted(store, run(store, 3, "bad")) == Failing(new=1)


def test_the_documents_of_a_night_tell_their_known_failures(store: Store) -> None:
    first = run(store, 1, "bad", "good", "bad")
    second = run(store, 2, "bad", "bad", "good")
    told = {one.name: (one.failed, one.old, one.since) for one in store.comparisons.documents(first.id, second.id)}
    assert told == {"d0": (1, 1, night(1)), "d1": (1, 0, night(2)), "d2": (0, 0, None)}


def test_of_jobs_that_nobody_knows_nothing_has_failed(store: Store) -> None:
    assert store.failures.of_jobs([JobId("none")]) == {"none": Failing()}
    assert store.failures.of_jobs([]) == {}
