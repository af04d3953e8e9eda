"""Answers in the store that other jobs may take, and what the lengths of earlier ones say."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import event, text

from orchestrator.core.model import Job, JobId, Outcome, Price, RequestState, Span, Usage
from orchestrator.store import Store
from orchestrator.store.records import Settled
from tests.support.stored import NOW, failed, job, later, row, sharded, succeeded

SUCCEEDED = RequestState.SUCCEEDED


def asked(store: Store, job_id: str, *keys: str | None, model: str | None = "tiny", **facts: Any) -> Job:
    """A job whose rows have these keys, each answered by a model of this name."""
    return answered(store, with_rows(store, job_id, *keys, **facts), NOW, model)


def with_rows(store: Store, job_id: str, *keys: str | None, task: str = "t", **facts: Any) -> Job:
    new = job(job_id, series=job_id, **facts)
    store.jobs.add(new, {})
    store.rows.add(new.id, [row(seq, cache_key=key, task=task) for seq, key in enumerate(keys)], {}, NOW)
    return new


def answered(store: Store, of: Job, now: datetime, model: str | None) -> Job:
    batch = sharded(store, of)
    settled = [Settled(*succeeded(seq)) for seq in range(batch.rows)]
    store.rows.settle(batch.id, of.id, batch.backend, settled, now, model)
    return of


def found(store: Store, *keys: str, home: str = "home", checked: bool = False) -> dict[tuple[str, str, str], str]:
    return {mark: answer.job_id for mark, answer in store.known.answers(home, keys, checked=checked).items()}


def test_an_answer_is_found_by_its_request_backend_and_model(store: Store) -> None:
    asked(store, "a-1", "k1", "k2", None)
    asked(store, "b-1", "k1", model="big")
    assert found(store, "k1", "k9") == {("k1", "gpu", "tiny"): "a-1", ("k1", "gpu", "big"): "b-1"}
    [answer] = store.known.answers("home", ["k2"], checked=True).values()
    assert (answer.state, answer.custom_id, answer.answered_as) == (SUCCEEDED, "r1", "tiny")
    assert answer.line == ("a-1.001", "output", Span(10, 9))


def test_the_newest_of_several_answers_is_found(store: Store) -> None:
    for number in (1, 3, 2):
        answered(store, with_rows(store, f"a-{number}", "k"), later(number), "tiny")
    assert found(store, "k") == {("k", "gpu", "tiny"): "a-3"}


def test_no_answer_is_one_that_is_missing_failed_unknown_or_in_another_home(store: Store) -> None:
    with_rows(store, "waits-1", "k")
    batch = sharded(store, with_rows(store, "failed-1", "k"))
    store.rows.settle(batch.id, batch.job_id, "gpu", [Settled(*failed(0))], NOW, "tiny")
    asked(store, "unknown-1", "k", model=None)
    asked(store, "elsewhere-1", "k", home="other")
    assert found(store, "k") == {}
    assert found(store, "k", home="other") == {("k", "gpu", "tiny"): "elsewhere-1"}


def test_answers_that_passed_no_check_are_kept_apart(store: Store) -> None:
    asked(store, "file-1", "k", task="")
    assert found(store, "k", checked=True) == {}
    assert found(store, "k", checked=False) == {("k", "gpu", "tiny"): "file-1"}


def test_what_was_taken_over_is_not_taken_from_again(store: Store) -> None:
    asked(store, "a-1", "k")
    [answer] = store.known.answers("home", ["k"], checked=False).values()
    second = job("b-1", series="b")
    store.jobs.add(second, {})
    store.rows.add(second.id, [row(0, custom_id="mine", cache_key="k")], {"mine": answer}, NOW)
    [mine] = store.rows.finished(second.id)
    assert (mine.custom_id, mine.state, mine.cost, mine.carried_from) == ("mine", SUCCEEDED, 0, "a-1")
    assert (mine.result, mine.backend, mine.usage) == (("a-1.001", "output", Span(0, 9)), "gpu", Usage(100, 40, 7))
    assert found(store, "k") == {("k", "gpu", "tiny"): "a-1"}
    assert store.ledger.booked(second.id).usage == Usage()
    # Tried again it is the job's own, and forgets what it had taken.
    store.jobs.finish(second.id, "x", NOW)
    assert store.rows.retry(second.id, [SUCCEEDED]) == 1
    assert store.known.originals(second.id, ["k"]) == {("k", "m", "t"): 0}


def test_answers_are_found_without_looking_at_every_row(store: Store) -> None:
    seen: list[tuple[str, Any]] = []
    database = store._database
    with_rows(store, "a-1", "k")
    listener = lambda connection, cursor, statement, parameters, *rest: seen.append((statement, parameters))  # noqa: E731
    event.listen(database._engine, "before_cursor_execute", listener)
    store.known.answers("home", ["k1", "k2"], checked=True)
    store.known.originals(JobId("a-1"), ["k1", "k2"])
    event.remove(database._engine, "before_cursor_execute", listener)
    queries = [one for one in seen if one[0].startswith("SELECT")]
    assert len(queries) == 2
    explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
    with database.read() as tx:
        if not database.is_sqlite:
            tx.execute(text("SET enable_seqscan = off"))  # an empty table is read as a whole
        for statement, parameters in queries:
            plan = "\n".join(str(line) for line in tx.exec_driver_sql(explain + statement, parameters))
            assert "ix_requests_cache" in plan, plan


def cut(seq: int, tokens: int, state: RequestState, code: str | None) -> Settled:
    outcome = Outcome(seq, state, "output", Span(0, 9), Usage(9, 0, tokens), "tiny", error_code=code)
    return Settled(outcome, Price(0, "x"))


@pytest.mark.parametrize(
    ("ends", "bound"),
    [
        ([(99, SUCCEEDED, None)], None),
        ([(100, SUCCEEDED, None), (7, SUCCEEDED, None)], 100),
        ([(100, RequestState.FAILED, "truncated")], 100),
    ],
    ids=["none", "an answer", "one that failed its check"],
)
def test_the_bound_at_which_answers_were_cut_off(store: Store, ends: list[Any], bound: int | None) -> None:
    of = job("a-1")
    store.jobs.add(of, {})
    store.rows.add(of.id, [row(seq, max_output=100) for seq in range(3)], {}, NOW)
    batch = sharded(store, of)
    store.rows.settle(batch.id, of.id, "gpu", [cut(seq, *end) for seq, end in enumerate(ends)], NOW)
    assert store.sizes.cut_at([of.id], "t", "v") == bound
    assert store.sizes.cut_at([of.id], "t", "w") is None
    assert store.sizes.cut_at([of.id], "u", "v") is None
    assert store.sizes.cut_at([], "t", "v") is None
