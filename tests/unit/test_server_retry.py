"""What the end of an attempt means for its row."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.error_body import read_error
from orchestrator.core.refusal_words import refuses_request
from orchestrator.server.dispatch.retry import (
    GATEWAY,
    MAX_DELAY,
    MAX_TRIES,
    Action,
    End,
    RetryVerdict,
    account_problem,
    judge,
    leaves_doubt,
    possible_account_problem,
)
from tests.support.examples import ample

KEEP = RetryVerdict(Action.KEEP)


def retry(reason: str, delay: float, *, overload: bool = False) -> RetryVerdict:
    return RetryVerdict(Action.RETRY, reason, delay, overload)


TABLE = {
    "answered": ({"status": 200}, KEEP),
    "no content": ({"status": 204}, KEEP),
    "the row's own fault": ({"status": 400}, KEEP),
    "no such model": ({"status": 404}, KEEP),
    "too large": ({"status": 413}, KEEP),
    "unprocessable": ({"status": 422}, KEEP),
    "no key": ({"status": 401}, RetryVerdict(Action.WAIT, "upstream refuses the API key (401)")),
    "no rights": ({"status": 403, "tries": 99}, RetryVerdict(Action.WAIT, "upstream refuses the API key (403)")),
    "overload": ({"status": 503}, retry("overloaded (503)", 0.5, overload=True)),
    "too many requests": ({"status": 429, "tries": 3}, retry("overloaded (429)", 2.0, overload=True)),
    "too many, for a while": ({"status": 429, "retry_after": 7.0}, retry("overloaded (429)", 7.0, overload=True)),
    "too many, come at once": ({"status": 429, "retry_after": 0.0}, retry("overloaded (429)", 0.0, overload=True)),
    "overload to the end": ({"status": 529, "tries": 19}, retry("overloaded (529)", 30.0, overload=True)),
    "overload without end": ({"status": 503, "tries": 20}, RetryVerdict(Action.KEEP, "still overloaded (503)")),
    "server error": ({"status": 500}, retry("server error (500)", 0.5)),
    "server error that says how long": ({"status": 502, "retry_after": 3.0}, retry("server error (502)", 3.0)),
    "time-out at the upstream": ({"status": 408, "tries": 2}, retry("server error (408)", 1.0)),
    "an unknown 5xx": ({"status": 599, "tries": 4}, retry("server error (599)", 4.0)),
    "server error again and again": ({"status": 500, "tries": 5}, KEEP),
    "not reached": (
        {"end": End.UNREACHABLE, "detail": "refused", "tries": 99},
        RetryVerdict(Action.WAIT, "upstream unreachable: refused"),
    ),
    "cut": ({"end": End.CUT, "detail": "reset"}, retry("cut: reset", 0.5)),
    "cut again and again": ({"end": End.CUT, "tries": 4, "detail": "x"}, RetryVerdict(Action.GIVE_UP, "cut: x")),
    "timed out": ({"end": End.TIMED_OUT, "tries": 2, "detail": "600 s"}, retry("timed out: 600 s", 1.0)),
    "timed out again": (
        {"end": End.TIMED_OUT, "tries": 3, "detail": "x"},
        RetryVerdict(Action.GIVE_UP, "timed out: x"),
    ),
    "no JSON": ({"end": End.GARBLED, "tries": 3, "detail": "html"}, retry("garbled: html", 2.0)),
    "no JSON again": ({"end": End.GARBLED, "tries": 4, "detail": "x"}, RetryVerdict(Action.GIVE_UP, "garbled: x")),
    "more bytes than are kept": ({"end": End.TOO_LONG, "detail": "x"}, RetryVerdict(Action.GIVE_UP, "too long: x")),
    "paid: overload without end": (
        {"status": 429, "tries": 999, "paid": True}, retry("overloaded (429)", 30.0, overload=True),
    ),
    "paid: overload without end, and how long": (
        {"status": 503, "tries": 99, "paid": True, "retry_after": 9.0}, retry("overloaded (503)", 9.0, overload=True),
    ),
    "paid: the account is refused": (
        {"status": 429, "paid": True, "account": "no credit"}, RetryVerdict(Action.LEAVE, "no credit"),
    ),
    "paid: one row is forbidden": ({"status": 403, "paid": True}, KEEP),
}  # fmt: skip


@pytest.mark.parametrize(("attempt", "verdict"), TABLE.values(), ids=TABLE.keys())
def test_the_verdict_on_an_attempt(attempt: dict, verdict: RetryVerdict) -> None:
    assert judge(**{"end": End.ANSWERED, "tries": 1, "base": 0.5, **attempt}) == verdict


@pytest.mark.slow
@settings(max_examples=ample(200))
@given(
    st.sampled_from(End), st.integers(100, 599), st.none() | st.floats(0, 120), st.integers(1, 2000),
    st.floats(0.01, 60),
)  # fmt: skip
def test_no_row_is_tried_for_ever_and_no_wait_is_endless(
    end: End, status: int, retry_after: float | None, tries: int, base: float
) -> None:
    verdict = judge(end, status=status, retry_after=retry_after, tries=tries, base=base)
    if verdict.action is Action.RETRY:
        assert tries < max(MAX_TRIES.values())
        assert 0 <= verdict.delay <= max(MAX_DELAY, retry_after or 0)
    if end is End.ANSWERED and status < 400:
        assert verdict.action is Action.KEEP
    # A time to wait or a fault of the upstream is never told without a reason.
    assert verdict.reason or verdict.action is Action.KEEP
    assert not verdict.overload or verdict.action is Action.RETRY


def test_delays_double_up_to_a_bound() -> None:
    delays = [judge(End.ANSWERED, status=503, tries=tries, base=0.5).delay for tries in range(1, 20)]
    assert delays[:7] == [0.5, 1, 2, 4, 8, 16, 30]
    assert set(delays[7:]) == {30}


DOUBTS = {
    "never left": (End.UNREACHABLE, 0, False),
    "refused": (End.ANSWERED, 400, False),
    "too many": (End.ANSWERED, 429, False),
    "failed": (End.ANSWERED, 500, False),
    **{f"a gateway's {status}": (End.ANSWERED, status, True) for status in sorted(GATEWAY)},
    "cut off": (End.CUT, 0, True),
    "timed out": (End.TIMED_OUT, 0, True),
    "an answer without sense": (End.GARBLED, 200, True),
    "an answer too long": (End.TOO_LONG, 200, True),
}


@pytest.mark.parametrize(("end", "status", "doubt"), DOUBTS.values(), ids=DOUBTS)
def test_what_may_be_billed_without_a_result(end: End, status: int, doubt: bool) -> None:
    assert leaves_doubt(end, status) is doubt


QUOTA = b'{"error":{"message":"You exceeded your current quota, sk-SECRET","type":"%b","code":%b}}'
ACCOUNTS = {
    "a bad key": (401, b"sk-SECRET", "the upstream refuses the API key (401)"),
    "no payment": (402, b"", "the upstream asks for payment (402)"),
    "no permission": (403, b"<html>", "the upstream refuses the account (403)"),
    "no credit, by code": (429, QUOTA % (b"x", b'"insufficient_quota"'), "insufficient_quota (429)"),
    "no credit, by type": (429, QUOTA % (b"insufficient_quota", b"null"), "insufficient_quota (429)"),
    "a hard limit": (400, QUOTA % (b"x", b'"billing_hard_limit_reached"'), "billing_hard_limit_reached (400)"),
    "a rate": (429, QUOTA % (b"requests", b'"rate_limit_exceeded"'), None),
    "flex has no room": (429, QUOTA % (b"x", b'"resource_unavailable"'), None),
    "a code that is a list": (429, QUOTA % (b"x", b"[1]"), None),
    "an error that is a text": (429, b'{"error":"insufficient_quota"}', None),
    "no JSON": (429, b"", None),
    "the row": (400, b'{"error":{"message":"no"}}', None),
}


@pytest.mark.parametrize(("status", "body", "problem"), ACCOUNTS.values(), ids=ACCOUNTS)
def test_when_it_is_the_account(status: int, body: bytes, problem: str | None) -> None:
    found = account_problem(status, body)
    assert found is None if problem is None else found.endswith(problem)
    assert "SECRET" not in (found or "")


REQUESTS = {
    "a 403 that names a field": (403, '{"error": {"message": "You are not allowed to request logprobs here"}}', True),
    "a 403 with the field as its param": (403, '{"error": {"message": "Denied.", "param": "logprobs"}}', True),
    "a 403 about the account": (403, '{"error": {"message": "Your account may not use this API."}}', False),
    "a 403 about a model": (403, '{"error": {"message": "Project `p` does not have access to model `m`"}}', True),
    "a 403 about a model, by its code": (403, '{"error": {"message": "Denied.", "code": "model_not_found"}}', True),
    "a 401 about a model": (401, '{"error": {"message": "No.", "type": "key_model_access_denied"}}', True),
    "a 401 about the key": (401, '{"error": {"message": "Invalid key for model logprobs"}}', False),
    "a 403 about a text": (403, '{"error": {"message": "Your input was flagged by the moderation"}}', True),
    "a 429 that waiting does not help": (
        429,
        '{"error": {"message": "Request too large for m on tokens per min (TPM): Limit 3, Requested 5"}}',
        True,
    ),
    "a 429 that passes": (429, '{"error": {"message": "Rate limit reached for m: Limit 3, Requested 2"}}', False),
    "a 429 that names a field": (429, '{"error": {"message": "Too many logprobs", "param": "logprobs"}}', False),
    "a 403 of a page": (403, "<html>Forbidden: temperature</html>", False),
    "llama.cpp's 500 about a field": (
        500,
        '{"error": {"message": "validation error: response_format.type: Input should be \'text\'"}}',
        True,
    ),
    "a 500 for an input that is too long for a vector": (
        500,
        '{"error": {"message": "input (4002 tokens) is too large to process. increase the batch size"}}',
        True,
    ),
    "a 500 of an engine that broke": (500, '{"error": {"message": "CUDA error near response_format"}}', False),
    "a 503 that names a field": (503, '{"error": {"message": "response_format is not supported"}}', False),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_an_answer_that_refuses_its_request_is_about_the_row_and_no_upstream(case: str) -> None:
    status, body, is_refused = REQUESTS[case]
    assert refuses_request(status, read_error(body.encode())) is is_refused
    if status in (401, 403):
        assert (account_problem(status, body.encode()) is None) is is_refused
    if is_refused:
        kept = judge(End.ANSWERED, status=status, tries=1, base=0.5, is_refused=True)
        assert kept == KEEP, "the row ends with the server's words, and the upstream takes the next one"
        assert judge(End.ANSWERED, status=status, tries=1, base=0.5) != KEEP


POSSIBLE = {
    "xAI's bad key": (400, b'{"code":"invalid-argument","error":"Incorrect API key provided. sk-SECRET"}', "API key"),
    "gemini's bad key": (400, b'[{"error":{"code":400,"message":"API key not valid. Please pass one."}}]', "API key"),
    "no credit": (400, b'{"error":{"message":"Your credit balance is too low, sk-SECRET"}}', "no credit"),
    "a field": (400, b'{"error":{"message":"temperature is not supported with this model"}}', None),
    "a failure": (500, b'{"error":{"message":"Invalid API key"}}', None),
}


@pytest.mark.parametrize(("status", "body", "problem"), POSSIBLE.values(), ids=POSSIBLE)
def test_when_it_may_be_the_account_by_its_words(status: int, body: bytes, problem: str | None) -> None:
    found = possible_account_problem(status, body)
    assert found is None if problem is None else problem in (found or "")
    assert "SECRET" not in (found or "")
    assert account_problem(status, body) is None


def test_a_spent_budget_of_a_gateway_is_the_accounts() -> None:
    body = b'{"error": {"message": "Budget has been exceeded", "type": "budget_exceeded", "code": "422"}}'
    assert account_problem(422, body) == "the upstream refuses the account: budget_exceeded (422)"
