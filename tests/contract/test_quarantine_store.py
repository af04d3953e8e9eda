"""Rows in quarantine: which they are, since when, and that a release lets the next run ask them."""

from __future__ import annotations

from orchestrator.core.model import Job, RequestState
from orchestrator.core.shards import ShardState
from orchestrator.policy.row_errors import is_passing
from orchestrator.store import Store
from orchestrator.store.quarantine import Held
from tests.support.stored import NOW, failed, job, later, row, settle, sharded, succeeded


def run(store: Store, number: int, *outcomes: object, fingerprint: str = "f", **facts: object) -> Job:
    """A run of the job file: its rows carry over what still holds, the others end like this."""
    new = job(f"run-{number}", created_at=later(24 * number), **facts)
    runs = [other.id for other in reversed(store.jobs.of_series(new.series))]
    store.jobs.add(new, {})
    rows = [row(seq, fingerprint=f"{fingerprint}{seq}") for seq in range(3)]
    known = store.known.earlier(runs, {made.custom_id: made.fingerprint for made, _ in rows})
    store.rows.add(new.id, rows, known, later(24 * number))
    store.jobs.mark_built(new.id, later(24 * number))
    if store.rows.has_waiting(new.id):
        settle(store, sharded(store, new, state=ShardState.ENDED), *outcomes, now=later(24 * number))
    return new


def held(store: Store, home: str = "home", series: str | None = None) -> list[Held]:
    return list(store.quarantine.held(home, is_passing, series))


def told(store: Store) -> list[tuple[str, str, str, int]]:
    return [(one.document, one.code, one.since, one.runs) for one in held(store)]


BAD = (failed(0, "refusal"), failed(1, "http_503"), succeeded(2))


def test_what_failed_for_good_is_held_since_the_run_that_asked(store: Store) -> None:
    run(store, 1, *BAD)
    assert told(store) == [("d0", "refusal", "run-1", 1)]
    run(store, 2)
    run(store, 3)
    [one] = held(store)
    assert (one.job, one.since, one.since_at, one.runs) == ("run-3", "run-1", later(24), 3)
    assert (one.task, one.custom_id, one.reason, one.name) == ("t", "r0", "no", "contracts")


def test_it_ends_when_the_document_or_the_question_changes(store: Store) -> None:
    run(store, 1, *BAD)
    run(store, 2, succeeded(0), succeeded(1), succeeded(2), fingerprint="other")
    assert told(store) == []
    run(store, 3, failed(0, "refusal"), succeeded(1), succeeded(2), fingerprint="third")
    assert told(store) == [("d0", "refusal", "run-3", 1)]


def test_a_released_row_is_asked_by_the_next_run_and_may_come_back(store: Store) -> None:
    run(store, 1, *BAD)
    run(store, 2)
    assert store.quarantine.release(held(store), NOW) == 1
    assert told(store) == []
    assert store.quarantine.release(held(store), NOW) == 0

    third = run(store, 3, failed(0, "refusal"))
    assert told(store) == [("d0", "refusal", "run-3", 3)]
    assert [(one.carried_from, one.state) for one in store.rows.finished(third.id)] == [
        (None, RequestState.FAILED),
        ("run-1", RequestState.FAILED),
        ("run-1", RequestState.SUCCEEDED),
    ]


def test_a_release_holds_over_a_run_that_is_cut_off(store: Store) -> None:
    run(store, 1, *BAD)
    store.quarantine.release(held(store), NOW)
    second = run(store, 2)
    store.rows.release(store.shards.of_job(second.id)[0].id, count_attempt=False)
    store.rows.end_open(second.id, RequestState.CANCELLED, "cancelled", "by the user", NOW)
    third = run(store, 3)
    assert next(iter(store.rows.finished(third.id))).state is RequestState.PENDING


def test_one_that_is_tried_again_in_its_own_job_is_held_again(store: Store) -> None:
    first = run(store, 1, *BAD)
    store.quarantine.release(held(store), NOW)
    store.rows.retry(first.id, [RequestState.FAILED])
    settle(store, sharded(store, first, 2, state=ShardState.ENDED), failed(0, "refusal"), succeeded(1))
    assert told(store) == [("d0", "refusal", "run-1", 1)]


def test_homes_job_files_and_unbuilt_jobs_are_told_apart(store: Store) -> None:
    run(store, 1, *BAD)
    run(store, 2, failed(0, "empty_answer"), succeeded(1), succeeded(2), series="other")
    run(store, 3, *BAD, series="third", home="elsewhere")
    store.jobs.add(job("unbuilt", created_at=later(99)), {})
    assert [(one.job, one.code) for one in held(store)] == [("run-2", "empty_answer"), ("run-1", "refusal")]
    assert [one.job for one in held(store, series="series")] == ["run-1"]
    assert [one.job for one in held(store, "elsewhere")] == ["run-3"]
