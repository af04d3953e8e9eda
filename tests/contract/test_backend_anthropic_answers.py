"""What the client of Anthropic's API makes of answers: above all, what a failed call has left behind."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import DoctorCheck, Intent, Sighting, inline_rows
from orchestrator.backends.inline_batches import UNREAD
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NotSent,
    OrchError,
    Uncertain,
)
from tests.support.claudedesk import MODEL, Desk, Json
from tests.support.scripted import Answer, Asked, Scripted, scripted

BATCHES = "/v1/messages/batches"


@contextmanager
def answering(
    answer: Answer | Callable[[Asked], Answer], folder: Path, **options: Any
) -> Iterator[tuple[Desk, Scripted]]:
    """A client and the provider that gives its every call this answer."""
    with scripted(answer if callable(answer) else lambda _: answer) as running:
        desk = Desk(running.base_url.removesuffix("/v1"), folder, **options)
        try:
            yield desk, running
        finally:
            desk.backend.close()


def error(status: int, kind: str = "some_error", message: str = "no", code: str = "", **headers: str) -> Answer:
    inner = {"type": kind, "message": message, "details": {"error_code": code} if code else None}
    body = {"type": "error", "error": inner, "request_id": "req_1"}
    return Answer(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


def batch(**facts: Any) -> Json:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    return {
        "id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress",
        "request_counts": counts | {"processing": 1}, "created_at": "2026-12-01T00:00:00Z", **facts,
    }  # fmt: skip


HTML = Answer(b"<html>Bad gateway</html>", 200, {"Content-Type": "text/html"})
NO_CREDIT = "Your credit balance is too low to access the Anthropic API."
CREATE: dict[str, tuple[Answer, type[OrchError]]] = {
    "bad key": (error(401, "authentication_error"), AccountError),
    "billing": (error(402, "billing_error"), AccountError),
    "no permission": (error(403, "permission_error"), AccountError),
    "no credit, as a bad request": (error(400, "invalid_request_error", NO_CREDIT), AccountError),
    "spend limit, as a rate limit": (
        error(429, "rate_limit_error", code="enforced_spend_limit_reached"),
        AccountError,
    ),
    "on hold, as a bad request": (error(400, "invalid_request_error", code="organization_on_hold"), AccountError),
    "too many requests": (error(429, "rate_limit_error"), BackendBusy),
    "growing too fast": (error(429, "rate_limit_error", code="ramp_limit_exceeded"), BackendBusy),
    "overloaded": (error(529, "overloaded_error"), BackendBusy),
    "bad request": (error(400, "invalid_request_error"), BackendRefused),
    "too large": (error(413, "request_too_large"), BackendRefused),
    "not found": (error(404, "not_found_error"), BackendRefused),
    "conflict": (error(409, "conflict_error"), BackendRefused),
    "wrong address": (Answer({"detail": "Not Found"}, 404), NotSent),
    "wrong method": (Answer(b"", 405), NotSent),
    "request timeout": (error(408, "timeout_error"), Uncertain),
    "internal error": (error(500, "api_error"), Uncertain),
    "a message that is no text": (Answer({"error": {"type": "api_error", "message": {"a": 1}}}, 500), Uncertain),
    "bad gateway": (Answer(b"<html>", 502, {"Content-Type": "text/html"}), Uncertain),
    "unavailable": (error(503), Uncertain),
    "gateway timeout": (error(504, "timeout_error"), Uncertain),
    "a page instead of a batch": (HTML, Uncertain),
    "no JSON": (Answer(b'{"id":'), Uncertain),
    "an array": (Answer([]), Uncertain),
    "a batch without an id": (Answer(batch(id=None)), Uncertain),
    "cut off": (Answer(fault="cut"), Uncertain),
    "cut within the answer": (Answer(batch(), fault="short"), Uncertain),
}


@pytest.mark.parametrize(("answer", "expected"), CREATE.values(), ids=CREATE)
def test_what_a_failed_create_leaves_behind(answer: Answer, expected: type[OrchError], tmp_path: Path) -> None:
    with answering(answer, tmp_path) as (desk, running):
        order = desk.order(["x"])
        with pytest.raises(OrchError) as found:
            desk.backend.create(order)
    assert type(found.value) is expected
    assert len(running.posts(BATCHES)) == 1, "a create that is sent twice is paid twice"


OTHERS: dict[str, tuple[Answer, type[OrchError]]] = {
    "bad key": (error(401, "authentication_error"), AccountError),
    "too many requests": (error(429, "rate_limit_error"), BackendBusy),
    "internal error": (error(500, "api_error"), BackendError),
    "request timeout": (error(408, "timeout_error"), BackendError),
    "bad request": (error(400, "invalid_request_error"), BackendRefused),
    "wrong address": (Answer(b"", 404), NotSent),
    "a page": (HTML, BackendError),
    "cut off": (Answer(fault="cut"), BackendError),
}
VERBS: dict[str, Callable[[Desk], object]] = {
    "retrieve": lambda desk: desk.backend.retrieve("msgbatch_1"),
    "batches": lambda desk: list(desk.backend.batches()),
    "download": lambda desk: desk.read("results:msgbatch_1:output"),
}


# A page instead of results is broken lines: what is not a row stays as it is.
CALLS = {
    f"{verb}, {name}": (VERBS[verb], *answer)
    for verb in VERBS
    for name, answer in OTHERS.items()
    if (verb, name) != ("download", "a page")
}


@pytest.mark.parametrize(("verb", "answer", "expected"), CALLS.values(), ids=CALLS)
def test_what_another_failed_call_means(
    verb: Callable[[Desk], object], answer: Answer, expected: type[OrchError], tmp_path: Path
) -> None:
    with answering(answer, tmp_path) as (desk, _):
        desk.order(["x"])
        with pytest.raises(OrchError) as found:
            verb(desk)
    assert type(found.value) is expected


def test_who_cannot_be_reached_got_nothing(tmp_path: Path) -> None:
    with scripted(lambda _: Answer()) as running:
        base_url = running.base_url.removesuffix("/v1")
    desk = Desk(base_url, tmp_path)
    order = desk.order(["x"])
    with pytest.raises(NotSent, match="claude: cannot create a batch"):
        desk.backend.create(order)
    desk.backend.close()


@pytest.mark.parametrize(
    ("headers", "seconds"), [({"retry_after": "7"}, 7.0), ({"retry_after_ms": "250"}, 0.25), ({}, None)]
)
def test_a_busy_provider_says_for_how_long(headers: dict[str, str], seconds: float | None, tmp_path: Path) -> None:
    with answering(error(429, "rate_limit_error", "slow down", **headers), tmp_path) as (desk, _):
        order = desk.order(["x"])
        with pytest.raises(BackendBusy) as found:
            desk.backend.create(order)
    assert (found.value.retry_after, found.value.code, found.value.status) == (seconds, "rate_limit_error", 429)
    assert found.value.message == "claude: cannot create a batch: slow down"


def test_a_key_stands_in_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def parrot(asked: Asked) -> Answer:
        return error(401, "authentication_error", f"invalid key: {asked.headers['authorization']}")

    with caplog.at_level(logging.DEBUG), answering(parrot, tmp_path) as (desk, running):
        order = desk.order(["x"])
        with pytest.raises(AccountError) as found:
            desk.backend.create(order)
        checks = list(desk.backend.check([]))
        account = desk.backend.account()
    (post,) = running.posts(BATCHES)
    assert post.headers["authorization"] == f"Bearer {desk.key}"
    assert post.headers["content-type"] == "application/json"
    assert found.value.__cause__ is None
    for text in (str(found.value), repr(found.value), repr(checks), account, *caplog.messages):
        assert desk.key not in text
    assert "invalid key: Bearer [key]" in str(found.value)


def test_a_check_of_a_provider_that_is_away_says_so_once(tmp_path: Path) -> None:
    with answering(error(500, "api_error", "sorry"), tmp_path) as (desk, _):
        assert list(desk.backend.check([MODEL])) == [
            DoctorCheck("batches", False, "claude: cannot list batches: sorry")
        ]


def test_a_list_that_does_not_end_by_itself_ends(tmp_path: Path) -> None:
    def page(asked: Asked) -> Answer:
        assert asked.query["limit"] == "100"
        data = [] if asked.query.get("after_id") == "msgbatch_1" else [batch()]
        return Answer({"data": data, "has_more": True, "first_id": None, "last_id": None})

    with answering(page, tmp_path) as (desk, running):
        assert [found.id for found in desk.backend.batches()] == ["msgbatch_1"]
        assert len(running.asked) == 2


@pytest.mark.parametrize("made", ["2026-12-01T00:00:00Z", None])
def test_a_batch_that_the_list_shows_without_an_id_is_not_taken_for_absent(made: str | None, tmp_path: Path) -> None:
    """Whose it is cannot be told, and to submit the rows again may pay them twice; one of another day is not ours."""
    since = datetime(2026, 12, 1, tzinfo=UTC)

    def shown(*entries: Json | None) -> Sighting:
        theirs = batch(id="msgbatch_7", created_at="2026-11-20T00:00:00Z")
        data = [theirs, *entries]
        with answering(Answer({"data": data, "has_more": False}), tmp_path) as (desk, _):
            return desk.backend.find(Intent("s.001", 2, since, tmp_path / "none.jsonl", lambda _: None))

    assert shown(batch(id=None, created_at="2026-11-20T00:00:00Z"), None, {}) == Sighting()
    assert shown(batch(id=None, created_at=made)).undecided == UNREAD
    assert shown({"type": "message_batch", "created_at": made}).undecided == UNREAD


@pytest.mark.long
def test_results_are_read_in_pieces(tmp_path: Path) -> None:
    message = {"id": "msg_1", "content": [{"type": "text", "text": "word " * 2000}], "stop_reason": "end_turn"}
    line = json.dumps({"custom_id": "x", "result": {"type": "succeeded", "message": message}}).encode() + b"\n"
    with answering(Answer(line * 1000), tmp_path) as (desk, _):
        path = inline_rows.path_of(desk.order(["x"]).input_file_id)
        tracemalloc.start()
        try:
            desk.backend.download("results:msgbatch_1:output", tmp_path / "out.jsonl", path)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (tmp_path / "out.jsonl").stat().st_size > 10_000_000
    assert peak < 3_000_000


def test_a_batch_is_sent_in_pieces(tmp_path: Path) -> None:
    """Of a length that is told before: the file goes out as it lies there."""
    with answering(Answer(batch()), tmp_path) as (desk, running):
        order = desk.order(["word " * 1000] * 300)
        desk.backend.create(order)
    (post,) = running.posts(BATCHES)
    assert post.headers["content-length"] == str(len(post.body))
    assert (
        post.body
        == b'{"requests":[%b]}' % inline_rows.rows_path(inline_rows.path_of(order.input_file_id)).read_bytes()
    )
    assert len(json.loads(post.body)["requests"]) == 300
