"""What keeping house asks of the store, on each database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.core.model import JobId, RequestState, Span
from orchestrator.core.shards import ShardState
from orchestrator.store import Store
from orchestrator.store.gc import Lines
from tests.support.stored import NOW, added, job, later, row, settle, sharded, succeeded

FOLDER = Path("jobs/contracts-1")


def finished(store: Store, job_id: str, *, rows: int = 2, **facts: object) -> None:
    """A job that is over, its rows answered in one file."""
    new = added(store, rows, job_id, built_at=NOW, **facts)
    of = sharded(store, new, state=ShardState.COLLECTED)
    settle(store, of, *(succeeded(seq, "0.5") for seq in range(rows)))
    store.jobs.finish(new.id, f"{FOLDER}/results.jsonl", NOW)


def carry(store: Store, origin: str, carrier: str, **facts: object) -> None:
    """A job whose row carries the first row of another."""
    finished_rows = store.known.earlier([JobId(origin)], {"r0": "f0"})
    new = job(carrier, **facts)
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(0), row(1)], finished_rows, NOW)


def test_who_carries_whose_answers(store: Store) -> None:
    finished(store, "a")
    carry(store, "a", "b")
    carry(store, "a", "c")
    carry(store, "a", "d", home="other")
    assert store.removals.carriers("home") == {"a": {"b": 1, "c": 1}}
    assert [found.id for found in store.removals.jobs("home")] == ["c", "b", "a"]
    assert [found.id for found in store.removals.jobs("other")] == ["d"]


def test_which_jobs_have_booked_since(store: Store) -> None:
    finished(store, "a")
    assert store.removals.booked_since(NOW) == {"a"}
    assert store.removals.booked_since(NOW + timedelta(microseconds=1)) == frozenset()


def test_where_result_and_request_lines_lie(store: Store) -> None:
    finished(store, "a")
    finished(store, "b", rows=1, home="other")
    carry(store, "a", "c")
    assert store.removals.result_files("home") == [Lines("a.001", "output", 3, 19)]
    assert list(store.removals.result_lines("home")) == [
        ("a.001", "output", Span(0, 9)),
        ("a.001", "output", Span(10, 9)),
    ]
    assert store.removals.request_files("home") == [("a", 199)]  # the other one is not built
    store.removals.clear(JobId("a"), FOLDER, NOW)
    assert store.removals.result_files("home") == [Lines("a.001", "output", 1, 9)]
    assert list(store.removals.result_lines("home")) == [("a.001", "output", Span(0, 9))]
    assert store.removals.request_files("home") == []


def test_a_cleared_job_keeps_its_figures_and_gives_no_answer(store: Store) -> None:
    finished(store, "a")
    assert store.removals.clear(JobId("a"), FOLDER, later(1))
    found = store.jobs.get("a")
    assert found.options == {"cleared_at": "2026-11-21T21:00:00+00:00"}
    assert found.output_path is None
    assert store.jobs.counts([found.id])[found.id].succeeded == 2
    assert store.ledger.spent(found.id) == 1
    assert store.known.earlier([found.id], {"r0": "f0"}) == {}
    assert store.rows.retry(found.id, [RequestState.SUCCEEDED]) == 0


def test_rows_that_were_delivered_elsewhere_stay_told(store: Store) -> None:
    finished(store, "a")
    assert store.removals.clear(JobId("a"), Path("jobs/contracts"), NOW)
    assert store.jobs.get("a").output_path == f"{FOLDER}/results.jsonl"


def test_a_forgotten_job_is_gone_with_its_ledger(store: Store) -> None:
    finished(store, "a")
    finished(store, "b")
    assert store.removals.forget(JobId("a"))
    assert not store.removals.forget(JobId("a"))
    assert store.jobs.find(JobId("a")) is None
    assert store.removals.booked_since(NOW) == {"b"}


@pytest.mark.parametrize("over", [False, True])
def test_only_what_is_over_goes(store: Store, over: bool) -> None:
    new = added(store, 1, "a")
    if over:
        store.jobs.fail(new.id, "no such folder")
    assert store.removals.clear(new.id, FOLDER, NOW) is over
    assert store.removals.forget(new.id) is over


def test_only_a_database_in_a_file_is_copied(store: Store, store_url: str, tmp_path: Path) -> None:
    finished(store, "a")
    store.removals.copy_to(tmp_path / "copy.db")
    assert store.removals.has_file == (tmp_path / "copy.db").exists() == store_url.startswith("sqlite")
    if store.removals.has_file:
        with Store.open(f"sqlite:///{tmp_path / 'copy.db'}") as copied:
            assert [found.id for found in copied.jobs.newest()] == ["a"]
