"""Result lines -> outcomes, whatever a file holds; and outcomes -> merged rows."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.core.batch_api import ResultLine
from orchestrator.core.model import FinishedRow, Outcome, RequestState, Span, Usage
from orchestrator.policy import results
from orchestrator.policy.answer_check import OutputCheck
from orchestrator.policy.answer_text import Answer, answer_of
from orchestrator.policy.merged_rows import batch_row, merged_row
from orchestrator.policy.results import FoundLine, NotExecuted, RowRefusal
from orchestrator.policy.row_errors import is_passing

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
TOKENS = Usage(10, 3, 4, 2, 5)
SPAN = Span(100, 50)
SCHEMA = {"type": "object", "required": ["months"], "properties": {"months": {"type": "integer"}}}


EMBEDDING = {"object": "list", "data": [{"embedding": [0.1]}], "model": "e", "usage": {"prompt_tokens": 8}}
RESPONSES = {"output": [{"content": [{"type": "output_text", "text": "ja"}]}], "usage": {"input_tokens": 1}}


def chat(content: object, finish: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return {"model": "tiny", "choices": [choice], "usage": USAGE}


def answered(body: object, status: int = 200, **more: Any) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "x", "body": body}
    return {"id": "batch_req_1", "custom_id": "a", "response": response, "error": None, **more}


def refused(error: object, status: int = 400) -> dict[str, Any]:
    return answered({"error": error}, status)


def unanswered(error: object) -> dict[str, Any]:
    return {"id": "batch_req_1", "custom_id": "a", "response": None, "error": error}


def told(line: dict[str, Any], check: OutputCheck | None = None, kind: str = "error") -> Outcome | NotExecuted:
    decoded = msgspec.json.decode(json.dumps(line), type=ResultLine)
    return results.outcome(7, kind, FoundLine(SPAN, decoded), check)


def refusal(line: dict[str, Any]) -> RowRefusal:
    return results.refusal(msgspec.json.decode(json.dumps(line), type=ResultLine))


def test_an_answer_is_a_success_with_its_tokens_and_its_place() -> None:
    orch = {"upstream": "http://gpu/v1", "latency_ms": 12, "upstream_seconds": 0.25, "attempts": 2}
    assert told(answered(chat("yes"), orch=orch)) == Outcome(
        7, RequestState.SUCCEEDED, "error", SPAN, TOKENS, "tiny", "http://gpu/v1", 12, 0.25, status=200
    )


@pytest.mark.parametrize("body", [chat("yes"), {**RESPONSES, "model": "tiny"}], ids=["chat", "responses"])
def test_an_answer_tells_the_tier_that_served_it(body: dict[str, Any]) -> None:
    assert _outcome(answered({**body, "service_tier": "flex"})).tier == "flex"
    assert _outcome(answered(body)).tier is None
    assert _outcome(answered({**body, "service_tier": "a tier of a very long name\0"})).tier == "a tier of a ver…"
    assert _outcome(answered({**body, "service_tier": "x\0"})).tier == "x\ufffd"


def test_sends_that_brought_no_answer_are_counted_whatever_became_of_the_row() -> None:
    orch = {"upstream": "u", "latency_ms": 1, "upstream_seconds": 0.5, "attempts": 3, "uncertain": 2}
    assert _outcome(answered(chat("yes"), orch=orch)).uncertain == 2
    assert _outcome(answered({"error": {"message": "x"}}, 400, orch=orch)).uncertain == 2
    assert told({**unanswered({"code": "batch_expired"}), "orch": orch}) == NotExecuted("batch_expired", 0.5, 2)


def _outcome(line: dict[str, Any], check: OutputCheck | None = None, kind: str = "output") -> Outcome:
    found = told(line, check, kind)
    assert isinstance(found, Outcome)
    return found


NOTHING = "the backend gave neither an answer nor a reason"
FAILURES = {
    "a request refused": (refused({"message": "too long", "code": "context_length"}), "context_length", "too long"),
    "refused without a code": (refused({"message": "no", "code": None}), "http_400", "no"),
    "a code that is a number": (refused({"message": "no", "code": 400}), "http_400", "no"),
    "without a message": (refused({"code": "c"}), "c", "no message"),
    "a model that sees nothing": (
        refused({"message": "small is not a multimodal model", "code": None}),
        "images_not_supported", "small is not a multimodal model"),
    "a model that sees nothing, with a code": (
        refused({"message": "image input is not supported", "code": "bad_request"}),
        "images_not_supported", "image input is not supported"),
    "an error that is a list": (refused(["x"]), "http_400", "x"),
    "an error that is null": (refused(None), "http_400", NOTHING),
    "no body": (answered(None, 404), "http_404", NOTHING),
    "an error body in the error": (refused({"error": {"message": "in", "code": "c"}}), "c", "in"),
    "a redirect": (answered({}, 302), "http_302", NOTHING),
    # What the status says may pass counts as that, whatever the provider calls it.
    "too many requests": (refused({"message": "slow", "code": "rate_limit"}, 429), "http_429", "slow"),
    "a server error": (refused({"message": "sorry", "code": "server_error"}, 500), "http_500", "sorry"),
    "overload with a number": (refused({"message": "full", "code": 503}, 503), "http_503", "full"),
    "no response, an error": (unanswered({"code": "c", "message": "m"}), "c", "m"),
    "no response, a type only": (unanswered({"type": "t", "message": "m"}), "t", "m"),
    "no response, a number": (unanswered({"code": 404, "message": "m"}), "404", "m"),
    "no response, no error": (unanswered(None), "error", NOTHING),
    "no response, a list": (unanswered([1]), "error", "[1]"),
    "no response, empty": (unanswered({}), "error", "no message"),
    "no keys at all": ({"custom_id": "a"}, "error", NOTHING),
    # `vllm run-batch`: a null body, the error beside it, as an object or as a string.
    "vllm, an object": (answered(None, 404, error={"error": {"message": "m", "code": 404}}), "http_404", "m"),
    "vllm, a string": (answered(None, 400, error="stream mode"), "http_400", "stream mode"),
    "an answer that is a list": (answered([1]), "invalid_response", "the body is not a JSON object"),
    "NUL, which Postgres does not take": (refused({"message": "a\0b", "code": "c\0"}), "c\ufffd", "a\ufffdb"),
    # Trap: rows with `status_code` 0.
    "status_code 0": (answered({"x": 1}, 0), "http_0", NOTHING),
    "status_code 0 with an answer": (answered(chat("yes"), 0), "http_0", NOTHING),
    "status_code 0 with an error": (refused({"message": "lost", "code": "c"}, 0), "http_0", "lost"),
    "no status_code": ({"custom_id": "a", "response": {"body": None}}, "http_0", NOTHING),
    # Trap: a body that is JSON in a string (Mistral), or no JSON at all.
    "a body in a string": (answered('{"error": {"message": "m", "code": "c"}}', 422), "c", "m"),
    "a body in a string, an answer": (answered(json.dumps(chat("yes")), 500), "http_500", NOTHING),
    "a body that is a text": (answered("Bad Gateway", 418), "http_418", "Bad Gateway"),
    "a body that is half of one": (answered('{"error": {"mess', 422), "http_422", NOTHING),
    "an answer that is a text": (answered("Bad Gateway"), "invalid_response", "the body is not a JSON object"),
    # Trap: a response with a null body.
    "response with a null body": (answered(None), "invalid_response", "the body is not a JSON object"),
    "null body, an error beside it": (answered(None, error={"code": "c", "message": "m"}), "c", "m"),
    "null body, a text beside it": (answered(None, error="went wrong"), "error", "went wrong"),
    # Trap: an error that is a plain string.
    "error as a plain string": (refused("bad request"), "http_400", "bad request"),
    "no response, error as a plain string": (unanswered("Request must not be sent in"), "error", "Request must not"),
    # An error where an answer should be, with a status that says that all is well.
    "an error with status 200": (refused({"message": "m", "code": "c"}, 200), "c", "m"),
    "an error with status 200 and no code": (refused({"message": "m", "type": "t"}, 200), "t", "m"),
    "an error with status 200 in a string": (answered('{"error": {"message": "m", "code": "c"}}'), "c", "m"),
    "an error text with status 200": (refused("went wrong", 200), "error", "went wrong"),
    "fastapi's words": (answered({"detail": "No worker is left"}), "error", "No worker is left"),
    "fastapi's list": (answered({"detail": [{"loc": ["body", "n"], "msg": "m"}]}), "http_400", "n: m"),
    "cloudflare's list": (answered({"success": False, "errors": [{"code": 7003, "message": "m"}], "result": None}),
                          "error", "m"),
    "errors without words": (answered({"errors": {"n": ["m"]}}), "error", NOTHING),
    "a code and a message": (answered({"code": 503, "message": "busy", "data": None}), "http_503", "busy"),
    "a word and a message": (answered({"code": "Throttling", "message": "busy"}), "Throttling", "busy"),
    "a status and a title": (answered({"title": "Gone", "status": 410}), "410", "Gone"),
    "a message alone": (answered({"message": "Endpoint request timed out"}), "error", "Endpoint request"),
    "minimax": (answered({"choices": None, "base_resp": {"status_code": 1004, "status_msg": "login fail"}}),
                "401", "login fail"),
    "minimax beside choices": (answered({"choices": chat("")["choices"],
                                           "base_resp": {"status_code": 1027, "status_msg": "sensitive"}}),
                               "400", "sensitive"),
    "baidu": (answered({"error_code": 336100, "error_msg": "busy"}), "error", "busy"),
    "mistral's object": (answered({"object": "error", "message": {"detail": [{"msg": "m"}]}}), "error", "m"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["output", "error"])  # trap: failed rows inside the output file
@pytest.mark.parametrize(("line", "code", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_has_a_code_and_a_message(line: dict[str, Any], code: str, message: str, kind: str) -> None:
    found = _outcome(line, kind=kind)
    assert (found.state, found.kind, found.span) == (RequestState.FAILED, kind, SPAN)
    assert found.error_code == code
    assert found.error_message is not None
    assert found.error_message.startswith(message)
    assert (found.usage, found.model) == (Usage(), None)


@pytest.mark.parametrize("extra", [
    {"errors": [{"message": "a tool failed"}]}, {"error": {}}, {"error": ""}, {"detail": "slow"}, {"message": "ok"},
    {"code": 0, "msg": "success"}, {"base_resp": {"status_code": 0, "status_msg": "success"}},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("body", [chat("yes"), RESPONSES], ids=["chat", "responses"])
def test_an_answer_with_words_beside_it_stays_an_answer(body: dict[str, Any], extra: dict[str, Any]) -> None:
    found = _outcome(answered({**body, **extra}), OutputCheck(None))
    assert (found.state, found.error_code) == (RequestState.SUCCEEDED, None)


REFUSALS = {
    "by status": (
        refused({"message": "pay", "code": "insufficient_quota", "type": "insufficient_quota"}, 429),
        RowRefusal(429, "insufficient_quota", "insufficient_quota", "pay"),
    ),
    "by a number": (refused({"message": "no", "code": 400, "type": "T"}), RowRefusal(400, None, "T", "no")),
    "not run": (unanswered({"code": "batch_expired", "message": "m"}), RowRefusal(None, "batch_expired", None, "m")),
    "by nothing": (answered(None, 0), RowRefusal(0, None, None, None)),
    "by a text": (answered("Bad Gateway", 502), RowRefusal(502, None, None, "Bad Gateway")),
    "beside the response": (answered(None, 400, error="no"), RowRefusal(400, None, None, "no")),
    "with status 200": (refused({"message": "m", "code": "c"}, 200), RowRefusal(None, "c", None, "m")),
    "an answer": (answered(chat("yes")), RowRefusal(None, None, None, None)),
}


@pytest.mark.parametrize(("line", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_is_told_in_the_backends_own_words(line: dict[str, Any], words: RowRefusal) -> None:
    assert refusal(line) == words


FAILED_RESPONSE = {"model": "tiny", "status": "failed", "output": [], "error": {"code": "c"}, "usage": USAGE}
STATUSES: dict[str, tuple[dict[str, Any], int | None]] = {
    "an answer": (answered(chat("yes")), 200),
    "an answer that fails its check": (answered(chat("")), 200),
    "refused": (refused({"message": "no"}), 400),
    "status 0": (answered("x", 0), 0),
    "no response": (unanswered("x"), None),
    "no answer with status 200": (answered(None), 200),
    "an error with status 200": (refused("x", 200), None),
    "an error with status 200 that was billed": (answered(FAILED_RESPONSE), 200),
}


@pytest.mark.parametrize(("line", "status"), STATUSES.values(), ids=STATUSES.keys())
def test_the_status_tells_whether_there_was_an_answer(line: dict[str, Any], status: int | None) -> None:
    assert _outcome(line, OutputCheck(None)).status == status


def test_an_answer_in_a_string_is_an_answer() -> None:
    found = _outcome(answered(json.dumps(chat('{"months": 12}'))), OutputCheck(SCHEMA))
    assert (found.state, found.usage, found.model) == (RequestState.SUCCEEDED, TOKENS, "tiny")
    assert merged(finished(), answered(json.dumps(chat("yes"))))["output"] == "yes"


def test_an_error_with_status_200_keeps_the_tokens_that_are_billed() -> None:
    found = _outcome(answered(FAILED_RESPONSE))
    assert (found.state, found.usage, found.model) == (RequestState.FAILED, TOKENS, "tiny")


def test_an_error_that_is_null_is_none() -> None:
    # A Responses body has the key always.
    body = {**RESPONSES, "error": None}
    assert _outcome(answered(body)).state is RequestState.SUCCEEDED


@pytest.mark.parametrize("code", ["batch_expired", "batch_cancelled"])
def test_a_row_that_was_not_run_is_no_outcome(code: str) -> None:
    assert told(unanswered({"code": code, "message": "x"})) == NotExecuted(code)
    assert told(refused({"code": code, "message": "x"}, 408)) == NotExecuted(code)
    orch = {"upstream": "u", "latency_ms": 1, "upstream_seconds": 0.5, "attempts": 1}
    assert told({**unanswered({"code": code}), "orch": orch}) == NotExecuted(code, 0.5)


def test_a_refusal_after_work_keeps_what_it_took() -> None:
    orch = {"upstream": "u", "latency_ms": 5, "upstream_seconds": 1.5, "attempts": 3}
    found = told({**refused({"message": "x"}), "orch": orch})
    assert isinstance(found, Outcome)
    assert (found.upstream, found.latency_ms, found.upstream_seconds) == ("u", 5, 1.5)


def test_a_message_is_cut_to_what_a_report_shows() -> None:
    found = told(refused({"message": "x" * 9999, "code": "y" * 9999}))
    assert isinstance(found, Outcome)
    assert found.error_message == "x" * 499 + "…"
    assert len(found.error_code or "") == 500


TEXTS = {
    "chat": (chat("yes"), Answer("yes", "stop", False)),
    "chat, cut": (chat("ye", "length"), Answer("ye", "length", False)),
    "chat, tools": (chat(None, tool_calls=[{"id": "1"}]), Answer(None, "stop", True)),
    "chat, no tools": (chat(None, tool_calls=[]), Answer(None, "stop", False)),
    "chat, refused": (chat(None, refusal="I may not."), Answer(None, "stop", False, "I may not.")),
    "chat, not refused": (chat("yes", refusal=None), Answer("yes", "stop", False)),
    "chat, refused in another shape": (chat(None, refusal=["no"]), Answer(None, "stop", False, '["no"]')),
    "completion": ({"choices": [{"text": "yes", "finish_reason": "stop"}]}, Answer("yes", "stop", False)),
    "responses": (RESPONSES, Answer("ja", None, False)),
    "responses, refused": (
        {"output": [{"content": [{"type": "refusal", "refusal": "No."}]}]}, Answer(None, None, False, "No."),
    ),
    "responses, cut": (
        {**RESPONSES, "incomplete_details": {"reason": "max_output_tokens"}}, Answer("ja", "length", False),
    ),
    "responses, filtered": (
        {**RESPONSES, "incomplete_details": {"reason": "content_filter"}}, Answer("ja", "content_filter", False),
    ),
    "responses, whole": ({**RESPONSES, "incomplete_details": None}, Answer("ja", None, False)),
    "responses, cut before a word": (
        {"output": [{"type": "reasoning", "content": None}, {"type": "message", "content": []}],
         "incomplete_details": {"reason": "max_output_tokens"}},
        Answer(None, "length", False),
    ),
    "responses, a tool": ({"output": [{"type": "function_call"}]}, Answer(None, None, True)),
    "embedding": (EMBEDDING, Answer(None, None, True, data=msgspec.Raw(b'[{"embedding": [0.1]}]'))),
    "no choices": ({"choices": []}, Answer(None, None, False, is_missing=True)),
    "nothing": ({}, Answer(None, None, False, is_missing=True)),
    "another shape": ({"choices": "x"}, Answer(None, None, False, is_missing=True)),
    "deep": ({"data": None, "output": [[[]]]}, Answer(None, None, True)),
}  # fmt: skip


@pytest.mark.parametrize(("body", "answer"), TEXTS.values(), ids=TEXTS.keys())
def test_the_text_of_an_answer(body: dict[str, Any], answer: Answer) -> None:
    assert answer_of(msgspec.Raw(json.dumps(body).encode())) == answer


CHECKS: dict[str, tuple[dict[str, Any] | None, Answer, str | None, str]] = {
    "text": (None, Answer("yes", "stop", False), None, ""),
    "text that was cut": (None, Answer("ye", "length", False), None, ""),
    "nothing": (None, Answer(None, "stop", False), "empty_answer", "the model returned an empty answer"),
    "white space": (None, Answer(" \n", "stop", False), "empty_answer", "the model returned an empty answer"),
    "refused": (None, Answer(None, "stop", False, "I may not."), "refusal", "the model refused: I may not."),
    "refused under a schema": (SCHEMA, Answer(None, "stop", False, "No."), "refusal", "the model refused: No."),
    "withheld": (None, Answer("", "content_filter", False), "content_filter", "the provider's content filter"),
    "the rest withheld": (None, Answer("ye", "content_filter", False), "content_filter", "the provider's content"),
    "JSON withheld": (SCHEMA, Answer('{"mon', "content_filter", False), "content_filter", "the provider's content"),
    "whole JSON, then withheld": (SCHEMA, Answer('{"months": 1}', "content_filter", False), None, ""),
    "a tool call": (SCHEMA, Answer(None, "stop", True), None, ""),
    "thoughts to the limit": (None, Answer("", "length", False), "truncated", "the answer reached max_tokens"),
    "blanks to the limit": (None, Answer(" \n" * 300, "length", False), "endless_blanks", "the answer ran"),
    "JSON, then blanks": (SCHEMA, Answer('{"months":' + "\n" * 90, "length", False), "endless_blanks", "the ans"),
    "JSON with some blanks": (SCHEMA, Answer('{"months":  \n', "length", False), "truncated", "the answer reached"),
    "fits": (SCHEMA, Answer(' {"months": 12}\n', "stop", False), None, ""),
    "no JSON": (SCHEMA, Answer("twelve", "stop", False), "invalid_json", "the answer is not JSON: "),
    "fenced": (SCHEMA, Answer('```json\n{"months": 12}\n```', "stop", False), None, ""),
    "half a fence": (SCHEMA, Answer('```json\n{"months": 12', "stop", False), "invalid_json", "the answer is no"),
    "two values": (SCHEMA, Answer('{"months": 1} {}', "stop", False), "invalid_json", "the answer is not JSON"),
    "cut": (SCHEMA, Answer('{"months": 1', "length", False), "truncated", "the answer reached max_tokens"),
    "whole at the limit": (SCHEMA, Answer('{"months": 1}', "length", False), None, ""),
    "a field missing": (SCHEMA, Answer("{}", "stop", False), "schema_mismatch", "the answer: 'months' is a required"),
    "another type": (SCHEMA, Answer('{"months": "x"}', "stop", False), "schema_mismatch", "months: 'x' is not"),
    "brackets to the limit": (SCHEMA, Answer("[" * 50_000, "length", False), "truncated", "the answer reached"),
    "brackets": (SCHEMA, Answer("[" * 50_000, "stop", False), "invalid_json", "the answer is not JSON: maximum"),
    "a number without end": (SCHEMA, Answer("9" * 9000, "stop", False), "invalid_json", "the answer is not JSON"),
    "a schema without end": ({"$ref": "#"}, Answer("1", "stop", False), "schema_mismatch", "the answer is nested"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "answer", "code", "message"), CHECKS.values(), ids=CHECKS.keys())
def test_answers_are_checked(schema: dict[str, Any] | None, answer: Answer, code: str | None, message: str) -> None:
    problem = OutputCheck(schema).problem(answer)
    assert (problem[0] if problem else None) == code
    assert problem is None or problem[1].startswith(message)


def test_an_answer_that_fails_its_check_is_a_failure_that_was_paid_for() -> None:
    found = told(answered(chat("twelve")), OutputCheck(SCHEMA))
    assert isinstance(found, Outcome)
    assert (found.state, found.error_code, found.usage.output_tokens) == (RequestState.FAILED, "invalid_json", 4)


PASSING = {
    "upstream_error": True, "batch_expired": True, "batch_cancelled": True, "missing_result": True,
    "budget_exhausted": True, "part_failed": True,
    "http_500": True, "http_503": True, "http_429": True, "http_408": True,
    "http_0": True, "http_425": True, "http_501": False, "rate_limit_exceeded": True, "insufficient_quota": False,
    "server_is_odd": False, "http_400": False, "http_404": False, "http_4290": True,
    "invalid_json": False, "truncated": False, "endless_blanks": False,
    "schema_mismatch": False, "encrypted": False, "": False, None: False,
}  # fmt: skip


@pytest.mark.parametrize(("code", "passing"), PASSING.items(), ids=str)
def test_which_failures_another_night_tries_again(code: str | None, passing: bool) -> None:
    assert is_passing(code) is passing


def finished(**facts: Any) -> FinishedRow:
    given = {
        "seq": 7, "custom_id": "a", "document": "docs/a", "task": "t", "model": "small", "prompt_version": "v",
        "cut_from_tokens": None, "state": RequestState.SUCCEEDED, "attempt": 0, "result": ("j.001", "output", SPAN),
        "answered_by": "tiny", "upstream": "u", "latency_ms": 5, "usage": TOKENS, "tier": "batch",
        "cost": Decimal("1E-12"), "error_code": None, "error_message": None, "carried_from": None, "backend": "gpu",
        "batch_id": "batch_1",
    }  # fmt: skip
    return FinishedRow(**{**given, **facts})


def merged(row: FinishedRow, line: dict[str, Any] | None, check: OutputCheck | None = None) -> dict[str, Any]:
    raw = merged_row(row, None if line is None else json.dumps(line).encode(), check)
    assert b"\n" not in raw
    return dict(json.loads(raw))


@pytest.mark.parametrize(
    ("model", "carried_from", "rung"), [("small", None, 1), ("small@3", None, 3), ("small@3", "job-0", None)], ids=str
)
def test_a_merged_row_says_which_model_of_its_list_was_asked(
    model: str, carried_from: str | None, rung: int | None
) -> None:
    row = finished(model=model, carried_from=carried_from)
    assert merged(row, answered(chat("yes")))["provenance"]["rung"] == rung


def test_a_merged_row_says_what_and_where_from() -> None:
    assert merged(finished(), answered(chat("yes\nno"))) == {
        "custom_id": "a", "document": "docs/a", "task": "t", "stage": None, "part": None, "parts": None,
        "status": "succeeded", "output": "yes\nno",
        "error": None,
        "provenance": {
            "backend": "gpu", "upstream": "u", "model": "tiny", "batch_id": "batch_1", "tier": "batch", "attempt": 1,
            "rung": 1, "tokens": {"input": 10, "cached": 3, "cache_write": 5, "output": 4, "reasoning": 2},
            "cost_usd": "0.000000000001", "latency_ms": 5, "settled_at": None,
            "finish_reason": "stop", "repaired": False, "prompt_version": "v", "document_cut_from_tokens": None,
            "document_sent_as": None, "document_notes": None, "carried_from": None, "why": None,
        },
    }  # fmt: skip


OUTPUTS = {
    "JSON where a schema is": (chat(' {"months":\n 12}'), OutputCheck(SCHEMA), {}, {"months": 12}),
    "text where none is": (chat('{"months": 12}'), OutputCheck(None), {}, '{"months": 12}'),
    "text of a row that failed its check": (
        chat("twelve"),
        OutputCheck(SCHEMA),
        {"state": RequestState.FAILED, "error_code": "invalid_json", "error_message": "x"},
        "twelve",
    ),
    "the body where there is no text": (EMBEDDING, None, {}, EMBEDDING),
}


@pytest.mark.parametrize(("body", "check", "facts", "output"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_the_output_of_a_merged_row(
    body: dict[str, Any], check: OutputCheck | None, facts: dict[str, Any], output: object
) -> None:
    assert merged(finished(**facts), answered(body), check)["output"] == output


@pytest.mark.parametrize("line", [None, refused({"message": "no"}), unanswered("x")], ids=["none", "4xx", "error"])
def test_a_merged_row_without_an_answer_has_an_error_and_no_output(line: dict[str, Any] | None) -> None:
    row = finished(state=RequestState.FAILED, error_code="c", error_message="m", result=None)
    found = merged(row, line)
    assert (found["status"], found["output"], found["error"]) == ("failed", None, {"code": "c", "message": "m"})


def test_a_row_of_a_batch_file_is_openais_line_without_our_own_additions() -> None:
    line = answered(chat("yes"), orch={"upstream": "u"})
    found = json.loads(batch_row(finished(), json.dumps(line).encode()))
    assert found == answered(chat("yes"))


def test_a_row_of_a_batch_file_without_a_line_is_told_as_an_error() -> None:
    row = finished(state=RequestState.CANCELLED, result=None)
    assert json.loads(batch_row(row, None)) == {
        "id": "batch_req_7",
        "custom_id": "a",
        "response": None,
        "error": {"code": "cancelled", "message": "This request is cancelled."},
    }


def test_a_result_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert list(results.read(tmp_path / "nowhere")) == []
