"""A 200 that says that it is not an answer: its row is sent again, and what was paid for it is booked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.model import FinishedRow, RequestState
from orchestrator.core.shards import ShardState
from orchestrator.pipeline.collect import settling
from orchestrator.pipeline.collect.unanswered import MAX_ATTEMPTS
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.policy.row_errors import is_passing
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.handles import handle
from tests.support.stored import NOW, added, sharded

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
PER_ROW = Decimal("0.001")


def chat(end: Any, **more: Any) -> dict[str, Any]:
    choice = {"message": {"content": "half an ans"}, "finish_reason": end, **more}
    return {"model": "m", "choices": [choice], "usage": USAGE}


def response(**more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    item = {"type": "message", "content": [{"type": "output_text", "text": "half an ans"}]}
    return {"object": "response", "model": "m", "output": [item], "usage": usage, **more}


UNFINISHED: dict[str, Any] = {
    "aborted": chat("abort"),
    "an error as its end": chat("error"),
    "no resources": chat("insufficient_system_resource"),
    "an error in a choice": chat(None, error={"code": 502, "message": "Rate limit exceeded at the provider"}),
    "a response that was cancelled": response(status="cancelled"),
    "a response that still runs": response(status="in_progress"),
    "a response that is incomplete for no reason": response(status="incomplete", incomplete_details=None),
    "a response that failed": response(status="failed", error={"code": "server_error", "message": "sorry"}),
    "a stream": 'data: {"choices": [{"delta": {"content": "half"}}]}\n\n',
    "half of a body": '{"choices": [{"mess',
}
FINAL: dict[str, Any] = {
    "no end": chat(None),
    "an empty end": chat(""),
    "an end that nobody knows": chat("eos"),
    "an end that is an object": chat({"type": "stop"}),
    "an end that is a number": chat(1),
    "an end that is a list": chat(["stop"]),
    "text that ended at max_tokens": chat("length"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as opened:
        yield opened


def collected(store: Store, tmp_path: Path, body: Any, batches: int) -> FinishedRow:
    """The one row of a job that so many batches in turn bring this body for."""
    home, job = Home(tmp_path), added(store, 1, "job")
    where = handle(cost=PER_ROW, is_own=False)
    for number in itertools.count(1):
        shard = sharded(store, job, number, state=ShardState.ENDED)
        path = home.results(shard.id, "output")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"custom_id": "r0", "response": {"status_code": 200, "body": body}}) + "\n")
        checks = {"t": OutputCheck(None)}
        ended = settling.EndedShard(job, shard, where, "m", checks, (), elsewhere=False, now=NOW)
        settling.collect(store, home, ended)
        settling.close(store, home, shard, NOW)
        if number == batches:
            break
    [row] = store.rows.finished(job.id)
    return row


@pytest.mark.parametrize("body", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_an_unfinished_answer_is_booked_and_its_row_is_sent_again(store: Store, tmp_path: Path, body: Any) -> None:
    row = collected(store, tmp_path, body, 1)
    assert (row.state, row.attempt) == (RequestState.PENDING, 1)
    [total] = store.ledger.totals("job")
    assert (total.cost, total.wasted) == (PER_ROW, PER_ROW)


@pytest.mark.parametrize("body", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_a_row_that_is_never_finished_fails_and_is_tried_by_the_next_night(
    store: Store, tmp_path: Path, body: Any
) -> None:
    row = collected(store, tmp_path, body, MAX_ATTEMPTS)
    assert row.state is RequestState.FAILED
    assert row.error_code in ("unfinished_answer", "server_error")
    assert is_passing(row.error_code)
    assert sum(total.cost for total in store.ledger.totals("job")) == MAX_ATTEMPTS * PER_ROW


@pytest.mark.parametrize("body", FINAL.values(), ids=FINAL.keys())
def test_any_other_end_is_the_rows_answer(store: Store, tmp_path: Path, body: Any) -> None:
    row = collected(store, tmp_path, body, 1)
    assert (row.state, row.attempt) == (RequestState.SUCCEEDED, 0)
