"""What a failed call has left behind: nothing, maybe what was asked for, or nobody knows."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    NoRoom,
    NotSent,
    OrchError,
    Uncertain,
)
from tests.support.hosted import KEY, ORDER, answering, batch, client, error, outcome
from tests.support.scripted import Answer, scripted

HTML = Answer(b"<html>Bad gateway</html>", 200, {"Content-Type": "text/html"})
CREATE: dict[str, tuple[Answer, type[OrchError]]] = {
    "bad key": (error(401, "invalid_api_key"), AccountError),
    "bad key as 400": (error(400, "invalid_api_key"), AccountError),
    "no credit": (error(402), AccountError),
    "no permission": (error(403), AccountError),
    "quota of the account is used up": (error(429, "insufficient_quota"), AccountError),
    "billing limit as 400": (error(400, "billing_hard_limit_reached"), AccountError),
    "too many requests": (error(429, "rate_limit_exceeded"), BackendBusy),
    "overload that says when": (error(503, retry_after="7"), BackendBusy),
    "overload of a gateway, which may have lost an answer": (error(503), Uncertain),
    "bad request": (error(400, "invalid_value"), BackendRefused),
    "unprocessable": (error(422), BackendRefused),
    "file not found": (error(404, "file_not_found"), BackendRefused),
    "wrong address": (error(404), NotSent),
    "wrong address of a gateway": (Answer({"detail": "Not Found"}, 404), NotSent),
    "wrong method": (Answer(b"", 405), NotSent),
    "request timeout": (error(408), Uncertain),
    "conflict": (error(409), Uncertain),
    "internal error": (error(500), Uncertain),
    "bad gateway": (error(502), Uncertain),
    "gateway timeout": (Answer(b"<html>", 504, {"Content-Type": "text/html"}), Uncertain),
    "disk full at our own server": (error(507, "storage"), NoRoom),
    "disk full elsewhere": (error(507), Uncertain),
    "a page instead of a batch": (HTML, Uncertain),
    "no JSON": (Answer(b'{"id":'), Uncertain),
    "an array": (Answer([]), Uncertain),
    "a batch without an id": (Answer({"object": "batch"}), Uncertain),
    "cut off": (Answer(fault="cut"), Uncertain),
    "cut within the answer": (Answer(batch(), fault="short"), Uncertain),
}


@pytest.mark.parametrize(("answer", "expected"), CREATE.values(), ids=CREATE)
def test_what_a_failed_create_leaves_behind(answer: Answer, expected: type[OrchError]) -> None:
    with answering(answer) as (backend, provider):
        found, _ = outcome(lambda: backend.create(ORDER))
    assert found is expected
    assert len(provider.posts()) == 1, "a create that is sent twice is paid twice"


def test_a_create_whose_answer_never_comes_is_uncertain() -> None:
    with answering(Answer(fault="hang"), timeout=0.2) as (backend, provider):
        found, said = outcome(lambda: backend.create(ORDER))
    assert found is Uncertain
    assert said.message == "cloud: cannot create a batch: timed out"
    assert len(provider.posts()) == 1


def test_what_never_left_is_not_sent(tmp_path: Path) -> None:
    with scripted(lambda _: Answer()) as gone:
        pass
    backend = client(gone.base_url)
    path = tmp_path / "in.jsonl"
    path.touch()
    for call in (
        lambda: backend.create(ORDER),
        lambda: backend.retrieve("batch_1"),
        lambda: backend.upload(path, "in.jsonl"),
        lambda: list(backend.batches()),
    ):
        found, said = outcome(call)
        assert found is NotSent
        assert "refused" in said.message
    backend.close()


def test_waiting_for_a_free_connection_in_vain_is_not_sent() -> None:
    pool = httpx2.HTTPTransport(limits=httpx2.Limits(max_connections=1))
    endless = Answer(b"x" * 10_000_000)
    with (
        answering(endless, transport=pool, timeout=httpx2.Timeout(30.0, pool=0.1)) as (backend, provider),
        httpx2.Client(transport=pool).stream("GET", provider.base_url),
    ):
        assert outcome(lambda: backend.create(ORDER))[0] is NotSent


RETRIEVE: dict[str, tuple[Answer, type[OrchError]]] = {
    "overload": (error(503), BackendBusy),
    "too many requests": (error(429), BackendBusy),
    "bad key": (error(401), AccountError),
    "internal error": (error(500), BackendError),
    "request timeout": (error(408), BackendError),
    "a page": (HTML, BackendError),
    "no JSON": (Answer(b"{"), BackendError),
    "cut off": (Answer(fault="cut"), BackendError),
    "a gateway's 404, which says nothing of the batch": (Answer(b"<html>", 404), NotSent),
    "a gateway's 404 in JSON": (Answer({"detail": "Not Found"}, 404), NotSent),
    "bad request": (error(400), BackendRefused),
}


@pytest.mark.parametrize(("answer", "expected"), RETRIEVE.values(), ids=RETRIEVE)
def test_what_may_be_asked_again_is_never_uncertain(answer: Answer, expected: type[OrchError]) -> None:
    with answering(answer) as (backend, _):
        assert outcome(lambda: backend.retrieve("batch_1"))[0] is expected
        assert outcome(lambda: list(backend.batches()))[0] is expected


def test_a_refusal_tells_status_code_and_when_to_come_again() -> None:
    with answering(error(429, "rate_limit_exceeded", "slow down", retry_after="90")) as (backend, _):
        said = outcome(lambda: backend.retrieve("batch_1"))[1]
    assert isinstance(said, BackendBusy)
    assert (said.status, said.code, said.retry_after) == (429, "rate_limit_exceeded", 90.0)
    assert said.message == "cloud: cannot retrieve batch_1: slow down"


def test_no_secret_is_told_whatever_the_provider_says(caplog: pytest.LogCaptureFixture) -> None:
    echo = error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}. Get one at example.com")
    with answering(echo) as (backend, _):
        for call in (lambda: backend.create(ORDER), lambda: backend.retrieve("b"), backend.account):
            said = outcome(call)[1]
            assert "Incorrect API key provided: [key]" in said.message
            assert said.__cause__ is None, "a log would show the client's own text"
        assert [KEY in check.found for check in backend.check(["m"])] == [False]
    assert KEY not in caplog.text


CANCEL = {"over already": (error(409, x_should_retry="false"), None), "gone": (error(404), BackendRefused)}


@pytest.mark.parametrize(("answer", "expected"), CANCEL.values(), ids=CANCEL)
def test_cancelling_what_is_over_already_is_no_error(answer: Answer, expected: type[OrchError] | None) -> None:
    with answering(answer) as (backend, _):
        if expected is None:
            backend.cancel("batch_1")
        else:
            assert outcome(lambda: backend.cancel("batch_1"))[0] is expected


def test_a_download_that_breaks_off_keeps_what_came_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    with answering(Answer(b"{}\n{", fault="short")) as (backend, _):
        came = backend.download("file-1", path, path)
    assert (came.bytes, path.read_bytes()) == (4, b"{}\n{\n")
    assert came.cut is not None


@pytest.mark.parametrize("answer", [Answer(b"", fault="short"), error(500), Answer(fault="cut")])
def test_a_download_of_nothing_leaves_nothing(tmp_path: Path, answer: Answer) -> None:
    path = tmp_path / "output.jsonl"
    with answering(answer) as (backend, _):
        assert outcome(lambda: backend.download("file-1", path, path))[0] is BackendError
    assert list(tmp_path.iterdir()) == []


def test_a_result_file_that_is_no_longer_there_is_refused(tmp_path: Path) -> None:
    with answering(error(404, message="No such File object: file-1")) as (backend, _):
        said = outcome(lambda: backend.download("file-1", tmp_path / "o", tmp_path / "i"))[1]
    assert isinstance(said, BackendRefused)
    assert said.status == 404
