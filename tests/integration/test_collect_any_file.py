"""One row, one outcome, whatever the files of a batch hold: missing, doubled, unknown, broken, in any order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from orchestrator.backends import LineProblem
from orchestrator.core.model import CancelCode, FinishedRow, Job, RequestState
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.collect import settling
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.handles import handle
from tests.support.stored import NOW, SPEC, added, sharded

ROWS = 5
PER_ROW = Decimal("0.001")
SCHEMA = {"type": "object"}


def line(kind: str, row: int) -> bytes:
    custom_id: Any = f"r{row}"
    response: Any = None
    error: Any = None
    text = "{}"
    match kind:
        case "broken":
            return b'{"custom_id": "r0", "resp'
        case "no id":
            custom_id = None
        case "unknown":
            custom_id = f"x{row}"
        case "bad answer":
            text = "no JSON"
        case "refused":
            response = {"status_code": 400, "body": {"error": {"message": "no", "code": "c"}}}
        case "expired" | "cancelled":
            error = {"code": f"batch_{kind}", "message": "not run"}
        case "unanswered":
            error = "?"
    if response is None and error is None:
        response = {"status_code": 200, "body": {"choices": [{"message": {"content": text}}]}}
    return json.dumps({"custom_id": custom_id, "response": response, "error": error}).encode()


KINDS = ("answer", "bad answer", "refused", "expired", "cancelled", "unanswered", "broken", "no id", "unknown")
LINES = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, ROWS - 1)), max_size=12)


class Place(NamedTuple):
    """A store and a home for many jobs in turn."""

    store: Store
    home: Home
    numbers: Iterator[int]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        yield Place(store, Home(tmp_path), itertools.count(1))


class Collected(NamedTuple):
    """A job whose batch has been collected, and its rows."""

    job: Job
    shard: Shard
    tally: settling.ShardTally
    rows: list[FinishedRow]


def collected(
    place: Place, output: list[bytes], error: list[bytes], *, status: str = "completed", cancelled: bool = False,
    on_late: str = "finish", attempts: int = 0, problems: tuple[LineProblem, ...] = (), is_own: bool = True,
) -> Collected:  # fmt: skip
    store, home, numbers = place
    job = added(store, ROWS, f"job-{next(numbers)}", spec={**SPEC, "on_late": on_late})
    for number in range(1, attempts + 1):
        store.rows.release(sharded(store, job, number).id, count_attempt=True)
    if cancelled:
        store.jobs.request_cancel(job.id, CancelCode.USER, "by the user", NOW)
        job = store.jobs.get(job.id)
    shard = sharded(store, job, attempts + 1, state=ShardState.ENDED)
    shard = replace(shard, provider_status=status)
    for kind, lines in (("output", output), ("error", error)):
        path = home.results(shard.id, kind)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(lines))
    tally = again(place, job, shard, problems, is_own=is_own)
    return Collected(job, store.shards.get(shard.id), tally, list(store.rows.finished(job.id)))


def again(
    place: Place, job: Job, shard: Shard, problems: tuple[LineProblem, ...] = (), *, is_own: bool = True
) -> settling.ShardTally:
    checks = {"t": OutputCheck(SCHEMA)}
    where = handle(cost=PER_ROW, is_own=is_own)
    ended = settling.EndedShard(job, shard, where, "m", checks, problems, elsewhere=False, now=NOW)
    tally = settling.collect(place.store, place.home, ended)
    settling.close(place.store, place.home, shard, NOW, tally.owed)
    return tally


def expected(lines: list[tuple[str, int]], row: int) -> RequestState | None:
    """What the first line that says something of a row says; None where none does."""
    for kind, about in lines:
        if about == row and kind == "answer":
            return RequestState.SUCCEEDED
        if about == row and kind in ("bad answer", "refused", "unanswered"):
            return RequestState.FAILED
    return None


def are_refused_alike(lines: list[tuple[str, int]]) -> bool:
    """True if at least two rows have results, and all of these are the same refusal."""
    told = [(kind, row) for kind, row in lines if kind in ("answer", "bad answer", "refused", "unanswered")]
    return {kind for kind, _ in told} == {"refused"} and len({row for _, row in told}) > 1


@pytest.mark.long
@settings(max_examples=6 * settings().max_examples)
@given(
    LINES, LINES, st.sampled_from(["completed", "expired", "cancelled", "failed"]), st.booleans(),
    st.sampled_from(["finish", "expire"]), st.integers(0, 2),
)  # fmt: skip
def test_every_row_has_one_outcome_or_goes_on(
    place: Place, output: list[tuple[str, int]], error: list[tuple[str, int]], status: str, cancelled: bool,
    on_late: str, attempts: int,
) -> None:  # fmt: skip
    found = collected(
        place, [line(*each) for each in output], [line(*each) for each in error],
        status=status, cancelled=cancelled, on_late=on_late, attempts=attempts,
    )  # fmt: skip
    told = {row: expected(output + error, row) for row in range(ROWS)}
    assert len(found.rows) == ROWS
    if not cancelled and are_refused_alike(output + error):
        assert {(row.state, row.attempt) for row in found.rows} == {(RequestState.PENDING, attempts)}
        assert {each.seq for each in place.store.rows.waiting(found.job.id, ("gpu",))} == set(range(ROWS))
        assert found.tally.released == ROWS
        return
    for row in found.rows:
        wanted = told[row.seq]
        if wanted is None and cancelled:
            wanted = RequestState.CANCELLED
        elif wanted is None and status == "expired":
            wanted = RequestState.EXPIRED if on_late == "expire" else RequestState.PENDING
        elif wanted is None:
            wanted = RequestState.FAILED if attempts == 2 else RequestState.PENDING
        assert row.state is wanted
        assert row.state is not RequestState.FAILED or row.error_code
    # Files, rows, counts and ledger agree.
    lines = {row: state for row, state in told.items() if state is not None}
    assert sum(found.tally.settled.values()) + found.tally.released == ROWS
    assert found.tally.released == sum(row.state is RequestState.PENDING for row in found.rows)
    assert place.store.ledger.spent(found.job.id) == PER_ROW * len(lines)
    assert {row.seq for row in found.rows if row.result is not None} == lines.keys()
    assert found.shard.state is ShardState.COLLECTED
    waiting = {each.seq for each in place.store.rows.waiting(found.job.id)}
    assert waiting == {row.seq for row in found.rows if row.state is RequestState.PENDING}


@pytest.mark.long
@settings(max_examples=25)
@given(st.permutations([("answer", 0), ("answer", 1), ("refused", 2), ("expired", 3), ("broken", 0), ("unknown", 1)]))
def test_the_order_of_the_lines_does_not_matter(place: Place, lines: list[tuple[str, int]]) -> None:
    found = collected(place, [line(*each) for each in lines], [])
    states = [row.state.value for row in found.rows]
    assert states == ["succeeded", "succeeded", "failed", "pending", "pending"]
    assert (found.tally.broken, found.tally.unknown, found.tally.released) == (1, 1, 2)


def test_a_doubled_line_counts_once_and_the_first_holds(place: Place) -> None:
    found = collected(place, [line("answer", 0), line("bad answer", 0), line("answer", 0)], [line("refused", 0)])
    assert (found.rows[0].state, found.tally.duplicates) == (RequestState.SUCCEEDED, 3)
    assert place.store.ledger.spent(found.job.id) == PER_ROW


def test_a_row_that_was_not_run_here_but_answered_there_is_answered(place: Place) -> None:
    found = collected(place, [line("expired", 0), line("answer", 0)], [line("cancelled", 1), line("answer", 1)])
    assert [row.state.value for row in found.rows[:2]] == ["succeeded", "succeeded"]


def test_collecting_again_after_a_crash_changes_nothing(place: Place) -> None:
    found = collected(place, [line("answer", 0), line("refused", 1)], [])
    # As if the process had died just before the shard was closed: its rows are settled and released already.
    ended = replace(found.shard, state=ShardState.ENDED)
    with pytest.raises(Exception, match="is no longer ended"):
        again(place, found.job, ended)
    assert list(place.store.rows.finished(found.job.id)) == found.rows
    assert place.store.ledger.spent(found.job.id) == PER_ROW * 2


def test_the_lines_that_a_validation_names_fail_and_the_others_go_on(place: Place) -> None:
    problems = (LineProblem("invalid_json_line", "bad", 2), LineProblem("x", "unknown", 99))
    found = collected(place, [], [], status="failed", problems=problems)
    assert [row.state.value for row in found.rows] == ["pending", "failed", *["pending"] * 3]
    assert (found.rows[1].error_code, found.rows[1].error_message) == ("invalid_json_line", "bad")
    assert [row.attempt for row in found.rows] == [0, 0, 0, 0, 0], "one line is no other one's fault"


@pytest.mark.parametrize(
    ("problem", "state", "attempt"),
    [
        (LineProblem("token_limit_exceeded", "Limit: 900,000 enqueued tokens."), RequestState.PENDING, 0),
        (LineProblem("http_413", "the file is too large"), RequestState.PENDING, 0),
        (LineProblem("invalid_api_key", "Incorrect API key provided"), RequestState.PENDING, 0),
        (LineProblem("invalid_request", "Cannot find file file-1"), RequestState.PENDING, 1),
        (LineProblem("url_mismatch", "The url does not match"), RequestState.PENDING, 0),
    ],
    ids=["no room", "too large", "bad key", "its file is lost", "the batch as such"],
)
def test_what_becomes_of_rows_whose_batch_was_refused_as_a_whole(
    place: Place, problem: LineProblem, state: RequestState, attempt: int
) -> None:
    found = collected(place, [], [], status="failed", problems=(problem,))
    assert {(row.state, row.attempt) for row in found.rows} == {(state, attempt)}


def refused(row: int, status: int, code: str | None) -> bytes:
    body = {"error": {"message": "no", "type": None, "code": code}}
    return json.dumps({"custom_id": f"r{row}", "response": {"status_code": status, "body": body}}).encode()


def test_rows_that_a_provider_refused_are_tried_again_where_that_can_help(place: Place) -> None:
    """Our own server has tried them itself: there, a refusal is the end."""
    error = [
        refused(0, 429, "rate_limit_exceeded"),
        refused(1, 500, None),
        refused(2, 400, "content_filter"),
        refused(3, 429, "insufficient_quota"),
        refused(4, 0, None),
    ]
    found = collected(place, [], error, is_own=False)
    pending, failed = RequestState.PENDING, RequestState.FAILED
    states = [(row.state, row.attempt) for row in found.rows]
    assert states == [(pending, 0), (pending, 1), (failed, 0), (pending, 0), (pending, 1)]
    assert found.tally.stop == "the account has no credit left, or has reached its spending limit"
    assert found.tally.wait is not None
    assert collected(place, [], error, is_own=True).tally.settled == {"failed": 5}
    assert [row.state for row in collected(place, [], error, is_own=False, attempts=2).rows][1] is failed


def test_rows_of_a_batch_that_is_gone_go_on(place: Place) -> None:
    problems = (LineProblem("batch_gone", "nobody knows it", None),)
    found = collected(place, [], [], status="failed", problems=problems)
    assert {row.state for row in found.rows} == {RequestState.PENDING}


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"[" * 100_000, b"\n\n\r\n", b"null", b"{}"],
    ids=["bytes", "brackets", "blank", "null", "empty"],
)
def test_a_file_of_something_else_ends_no_row(place: Place, content: bytes) -> None:
    found = collected(place, [content], [])
    assert {row.state for row in found.rows} == {RequestState.PENDING}
