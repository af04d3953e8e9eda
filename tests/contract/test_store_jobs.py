"""Jobs, their tags and events, and documents seen: the same over SQLite and Postgres."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from msgspec.structs import replace

from orchestrator.core.counts import Counts
from orchestrator.core.errors import StateConflict, StorageError, UsageError
from orchestrator.core.events import Event, EventKind
from orchestrator.core.model import CancelCode, Job, JobId, JobKind, RequestState
from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from orchestrator.store.records import SeenDocument
from orchestrator.store.tables import documents
from tests.support.stored import NOW, added, failed, job, later, row, settle, sharded, succeeded

FULL = job(
    "contracts-ab12",
    kind=JobKind.BATCH,
    spec={"name": "contracts", "tasks": [{"id": "ä", "n": 1.5, "no": None}]},
    options={"carry": False, "backend": "gpu"},
    deadline_at=later(10),
    budget=Decimal("12.000000000001"),
    built_at=later(0.1),
    cancel_requested_at=later(0.2),
    cancel_code="budget",
    cancel_reason="budget of $12 reached",
    finished_at=later(0.3),
    output_path="/out.jsonl",
    error="gone",
)


@pytest.mark.parametrize("wanted", [job(), FULL], ids=["few facts", "every fact"])
def test_a_job_comes_back_as_it_was_added(store: Store, wanted: Job) -> None:
    store.jobs.add(wanted, {"team": "legal", "client": "ÄÖ"})
    assert store.jobs.get(wanted.id) == wanted
    assert store.jobs.tags(wanted.id) == {"team": "legal", "client": "ÄÖ"}


def test_times_come_back_in_utc_to_the_microsecond(store: Store) -> None:
    berlin = timezone(timedelta(hours=1))
    store.jobs.add(job(created_at=datetime(2026, 11, 21, 21, 0, 0, 999_999, tzinfo=berlin)), {})
    created = store.jobs.get("contracts-1").created_at
    assert created.isoformat() == "2026-11-21T20:00:00.999999+00:00"


@pytest.mark.parametrize("budget", ["0", "0.000000000001", "100", "8999999.999999999999"])
def test_money_comes_back_exactly(store: Store, budget: str) -> None:
    store.jobs.add(job(budget=Decimal(budget)), {})
    assert store.jobs.get("contracts-1").budget == Decimal(budget)


@pytest.mark.parametrize(
    "text", ["contracts-ab12", "contracts-a", "contracts-ab1"], ids=["id", "start", "more of it"]
)
def test_a_job_is_found_by_the_start_of_its_id(store: Store, text: str) -> None:
    for name in ("contracts-ab12", "contracts-b", "invoices-a"):
        store.jobs.add(job(name), {})
    assert store.jobs.get(text).id == "contracts-ab12"


def test_a_whole_id_wins_over_a_longer_one(store: Store) -> None:
    store.jobs.add(job("a-1"), {})
    store.jobs.add(job("a-12"), {})
    assert store.jobs.get("a-1").id == "a-1"


def test_an_ambiguous_start_names_the_jobs_newest_first(store: Store) -> None:
    for number in range(7):
        store.jobs.add(job(f"a-{number}", created_at=later(number)), {})
    with pytest.raises(UsageError) as raised:
        store.jobs.get("a")
    assert raised.value.message == "'a' matches 7 jobs: a-6, a-5, a-4, a-3, a-2"
    assert raised.value.hint


@pytest.mark.parametrize("text", ["", "x", "contracts-12", "%", "_ontracts", "CONTRACTS-1", "ontracts-1"])
def test_what_no_id_begins_with_is_told_so(store: Store, text: str) -> None:
    store.jobs.add(job("contracts-1"), {})
    with pytest.raises(UsageError, match=f"there is no job '{text}'"):
        store.jobs.get(text)


def test_the_same_id_twice_is_refused(store: Store) -> None:
    store.jobs.add(job(), {})
    with pytest.raises(StorageError):
        store.jobs.add(job(), {})


def test_newest_and_series(store: Store) -> None:
    for number, series in enumerate(["s", "t", "s"]):
        store.jobs.add(job(f"a-{number}", series=series, created_at=later(number)), {})
    assert [found.id for found in store.jobs.newest()] == ["a-2", "a-1", "a-0"]
    assert [found.id for found in store.jobs.newest(1)] == ["a-2"]
    assert [found.id for found in store.jobs.newest(1, skip=1)] == ["a-1"]
    store.jobs.add(job("b-1", name="Größe 100%", created_at=later(3)), {})
    for text, ids in {"A-": ["a-2", "a-1", "a-0"], "größe": ["b-1"], "%": ["b-1"], "_": [], "x-": []}.items():
        assert [found.id for found in store.jobs.newest(text=text)] == ids, text
    assert [found.id for found in store.jobs.of_series("s")] == ["a-2", "a-0"]


def test_unfinished_jobs_come_by_deadline_then_by_age(store: Store) -> None:
    for found in (
        job("no-deadline-new", created_at=later(2)),
        job("no-deadline-old", created_at=later(1)),
        job("late", deadline_at=later(20)),
        job("soon", deadline_at=later(5), created_at=later(3)),
        job("far-future", deadline_at=NOW.replace(year=9000)),
        job("finished", finished_at=later(1)),
        job("broken", error="x"),
        job("elsewhere", home="other"),
        job("cancelling", deadline_at=later(6), cancel_requested_at=later(1)),
    ):
        store.jobs.add(found, {})
    found = [each.id for each in store.jobs.unfinished("home")]
    assert found == ["soon", "cancelling", "late", "far-future", "no-deadline-old", "no-deadline-new"]


def test_a_job_is_built_once(store: Store) -> None:
    store.jobs.add(job(), {})
    store.jobs.mark_built(JobId("contracts-1"), NOW)
    with pytest.raises(StateConflict):
        store.jobs.mark_built(JobId("contracts-1"), later(1))
    assert store.jobs.get("contracts-1").built_at == NOW


def test_cancelling_is_asked_for_once(store: Store) -> None:
    store.jobs.add(job(), {})
    assert store.jobs.request_cancel(JobId("contracts-1"), CancelCode.USER, "by the user", NOW)
    assert not store.jobs.request_cancel(JobId("contracts-1"), CancelCode.USER, "again", later(1))
    found = store.jobs.get("contracts-1")
    assert (found.cancel_requested_at, found.cancel_code, found.cancel_reason) == (
        NOW,
        CancelCode.USER,
        "by the user",
    )


@pytest.mark.parametrize("facts", [{"finished_at": NOW}, {"error": "x"}], ids=["finished", "broken"])
def test_what_is_over_is_not_cancelled(store: Store, facts: dict[str, object]) -> None:
    store.jobs.add(job(**facts), {})
    assert not store.jobs.request_cancel(JobId("contracts-1"), CancelCode.USER, "late", NOW)
    assert not store.jobs.request_cancel(JobId("unknown"), CancelCode.USER, "late", NOW)


def test_a_job_finishes_once(store: Store) -> None:
    store.jobs.add(job(built_at=NOW), {})
    store.jobs.finish(JobId("contracts-1"), "/out", later(1))
    with pytest.raises(StateConflict):
        store.jobs.finish(JobId("contracts-1"), "/other", later(2))
    with pytest.raises(StateConflict):
        store.jobs.fail(JobId("contracts-1"), "too late")
    assert store.jobs.get("contracts-1").output_path == "/out"


def test_a_retry_opens_the_job_in_the_same_step_as_its_rows(store: Store) -> None:
    store.jobs.add(job(built_at=NOW), {})
    store.rows.add(JobId("contracts-1"), [row(0), row(1)], {}, NOW)
    store.jobs.request_cancel(JobId("contracts-1"), CancelCode.USER, "x", NOW)
    store.rows.end_open(JobId("contracts-1"), RequestState.CANCELLED, "cancelled", "x", NOW)
    store.jobs.finish(JobId("contracts-1"), "/out", later(1))
    assert store.rows.retry(JobId("contracts-1"), [RequestState.FAILED]) == 0
    assert store.jobs.get("contracts-1").output_path == "/out"
    assert store.rows.retry(JobId("contracts-1"), [RequestState.CANCELLED]) == 2
    assert store.jobs.get("contracts-1") == job(built_at=NOW)


def test_a_retry_opens_a_job_that_failed_while_it_was_built(store: Store) -> None:
    store.jobs.add(job(built_at=None), {})
    store.jobs.fail(JobId("contracts-1"), "the folder is gone")
    assert store.jobs.get("contracts-1").error == "the folder is gone"
    assert store.rows.retry(JobId("contracts-1"), [RequestState.FAILED]) == 0
    assert store.jobs.get("contracts-1") == job(built_at=None)


def test_cut_answers_are_counted_carried_over_and_forgotten_by_a_retry(store: Store) -> None:
    one = added(store, 4, "a-1")
    ends = [succeeded(0, cut=True), succeeded(1, odd_end=True), succeeded(2, cut=True, repaired=True), failed(3)]
    settle(store, sharded(store, one), *ends)
    counted = Counts(succeeded=3, failed=1, cut=2, repaired=1, odd_ends=1)
    assert store.jobs.counts([one.id])[one.id] == counted
    known = store.known.earlier([one.id], {f"r{seq}": row(seq)[0].fingerprint for seq in range(4)})
    two = job("a-2", built_at=NOW)
    store.jobs.add(two, {})
    store.rows.add(two.id, [row(seq) for seq in range(4)], known, NOW)
    assert store.jobs.counts([two.id])[two.id] == counted
    assert store.rows.retry(one.id, [RequestState.SUCCEEDED]) == 3
    assert store.jobs.counts([one.id])[one.id].cut == 0


def test_counts_are_told_for_every_job_asked_for(store: Store) -> None:
    one = added(store, 5, "a-1")
    added(store, 2, "a-2")
    store.jobs.add(job("a-3"), {})
    batch = sharded(store, one)
    settle(store, batch, succeeded(0), succeeded(1), failed(2))
    ids = [JobId(name) for name in ("a-1", "a-2", "a-3")]
    assert store.jobs.counts(ids) == {
        "a-1": Counts(pending=2, succeeded=2, failed=1),
        "a-2": Counts(pending=2),
        "a-3": Counts(),
    }
    assert store.jobs.counts([]) == {}
    store.rows.release(batch.id, count_attempt=False)
    store.rows.end_open(one.id, RequestState.EXPIRED, "batch_expired", "late", NOW)
    assert store.jobs.counts(ids[:1]) == {"a-1": Counts(succeeded=2, failed=1, expired=2)}


@pytest.mark.parametrize(
    ("state", "is_submitted"),
    [("pending", False), ("submitting", True), ("submitted", True), ("ended", True), ("collected", True)],
)
def test_a_job_counts_as_submitted_as_soon_as_a_batch_may_exist(store: Store, state: str, is_submitted: bool) -> None:
    found = added(store)
    sharded(store, found, state=ShardState(state))
    assert store.jobs.submitted([found.id, JobId("other")]) == ({found.id} if is_submitted else set())


def test_a_job_whose_shards_were_given_up_was_not_submitted(store: Store) -> None:
    found = added(store)
    store.shards.move(sharded(store, found, state=ShardState.PENDING), ShardState.CANCELLED)
    assert store.jobs.submitted([found.id]) == frozenset()


def test_events_come_in_the_order_in_which_they_were_noted(store: Store) -> None:
    found = added(store)
    batch = sharded(store, found)
    store.jobs.note(found.id, EventKind.BUILT, "3 requests", later(1))
    store.jobs.note(found.id, EventKind.SUBMITTED, "batch created", NOW, batch.id)
    assert store.jobs.events(found.id) == [
        Event(later(1), "built", "3 requests"),
        Event(NOW, "submitted", "batch created", batch.id),
    ]
    assert store.jobs.events(JobId("other")) == []


def test_discarding_an_unbuilt_job_takes_everything_of_it_and_of_no_other(store: Store) -> None:
    for name in ("a-1", "a-2"):
        store.jobs.add(job(name, built_at=None), {"team": name})
        store.rows.add(JobId(name), [row(0), row(1)], {}, NOW)
        store.jobs.note(JobId(name), EventKind.BUILT, "x", NOW)
    gone = JobId("a-1")
    assert store.jobs.discard(gone)
    assert [found.id for found in store.jobs.newest()] == ["a-2"]
    assert store.jobs.tags(gone) == {}
    assert store.jobs.events(gone) == []
    assert list(store.rows.finished(gone)) == []
    assert len(list(store.rows.finished(JobId("a-2")))) == 2


def test_a_built_job_is_not_discarded(store: Store) -> None:
    store.jobs.add(job("a-1", built_at=NOW), {})
    assert not store.jobs.discard(JobId("a-1"))
    assert [found.id for found in store.jobs.newest()] == ["a-1"]


def seen(store: Store) -> dict[tuple[str, str], tuple[object, ...]]:
    with store._database.read() as tx:
        rows = tx.execute(documents.select()).all()
    return {
        (found.series, found.key): (found.digest, found.size, found.problem, found.first_seen_at, found.last_seen_at)
        for found in rows
    }


def test_documents_are_seen_for_the_first_and_for_the_last_time(store: Store) -> None:
    one, two = SeenDocument("docs/a", "d1", 10, None), SeenDocument("docs/b", "", None, "encrypted")
    store.jobs.saw_documents("s", [one, two], NOW)
    store.jobs.saw_documents("t", [one], NOW)
    store.jobs.saw_documents("s", [replace(one, digest="d2", size=5_000_000_000)], later(24))
    store.jobs.saw_documents("s", [], later(48))
    assert seen(store) == {
        ("s", "docs/a"): ("d2", 5_000_000_000, None, NOW, later(24)),
        ("s", "docs/b"): ("", None, "encrypted", NOW, NOW),
        ("t", "docs/a"): ("d1", 10, None, NOW, NOW),
    }


def test_a_document_that_two_sources_name_is_seen_once(store: Store) -> None:
    store.jobs.saw_documents("s", [SeenDocument("a", "1", 1, None), SeenDocument("a", "2", 2, None)], NOW)
    assert seen(store) == {("s", "a"): ("2", 2, None, NOW, NOW)}
