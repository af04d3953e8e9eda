"""Lines of providers' error files, as each writes them: what is read of them, and what becomes of their rows."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from orchestrator.core import batch_api
from orchestrator.policy.results import refusal
from orchestrator.policy.row_errors import Disposition, classify

RETRY, ELSEWHERE, NEVER, WAIT, STOP = Disposition
Line = dict[str, Any]


def answered(status: int, body: Any) -> Line:
    return {"response": {"status_code": status, "request_id": "x", "body": body}, "error": None}


def unanswered(error: Any) -> Line:
    return {"response": None, "error": error}


def rpc(status: str, message: str, code: int = 13) -> Line:
    return unanswered({"code": code, "message": message, "status": status})


FORBIDDEN = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 1}
INNER = {
    "error": {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"}
}
LINES: dict[str, tuple[Line, Disposition, str, str]] = {
    # the line, what happens to its row, the rule, and the beginning of the message
    "mistral, a body in a string": (
        answered(422, json.dumps({"detail": [FORBIDDEN]})), ELSEWHERE, "unsupported_parameter", "seed: Extra inputs"),
    "mistral, too long": (
        answered(400, {"object": "error", "message": "Prompt contains 14 tokens, too large for model with 8 maximum "
                       "context length", "type": "invalid_request_prompt", "code": "3051"}),
        NEVER, "context_length_exceeded", "Prompt contains"),
    "google, an argument": (rpc("INVALID_ARGUMENT", "a temperature of 1000"), NEVER, "http_4xx", "a temperature"),
    "google, no room": (rpc("RESOURCE_EXHAUSTED", "exhausted"), WAIT, "rate_limited", "exhausted"),
    "google, away": (rpc("UNAVAILABLE", "The service is currently unavailable."), WAIT, "overloaded", "The service"),
    "google, broken": (rpc("INTERNAL", "Internal error encountered."), RETRY, "http_5xx", "Internal error"),
    "google, no permission": (rpc("PERMISSION_DENIED", "denied on x"), STOP, "no_permission", "denied on x"),
    "google, no model": (rpc("NOT_FOUND", "models/x is gone"), ELSEWHERE, "model_not_found", "models/x"),
    "google, a list": (
        answered(400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}]),
        STOP, "bad_key", "API key not valid"),
    "azure, quoted within": (
        answered(400, {"error": {"code": "BadRequest", "message": json.dumps(INNER)}}),
        NEVER, "context_length_exceeded", "This model's maximum"),
    "azure, a filter": (
        answered(400, {"error": {"message": "filtered", "code": "content_filter", "innererror": {"code": "X"}}}),
        NEVER, "content_filter", "filtered"),
    "together, a rate": (
        unanswered({"message": "Request was rejected due to request rate limiting.", "type": "rate_limit"}),
        WAIT, "rate_limited", "Request was rejected"),
    "together, a field": (
        unanswered({"message": "Unsupported parameter: 'seed'", "type": "invalid_request_error", "param": "seed"}),
        ELSEWHERE, "unsupported_parameter", "Unsupported parameter"),
    "fireworks, a text": (unanswered("generation failed"), RETRY, "http_5xx", "generation failed"),
    "cohere, a text": (unanswered({"message": "Invalid request"}), NEVER, "http_4xx", "Invalid request"),
    "cohere, too long": (
        unanswered({"message": "too many tokens: size limit exceeded by 25836 tokens. Try using shorter or fewer "
                    "inputs. The limit for this model is 288000 tokens."}),
        NEVER, "context_length_exceeded", "too many tokens"),
    "zhipu, too long": (
        answered(400, {"error": {"code": "1261", "message": "Prompt\u8d85\u957f"}}),
        NEVER, "context_length_exceeded", "Prompt"),
    "zhipu, no credit": (
        answered(429, {"error": {"code": "1113", "message": "\u60a8\u7684\u8d26\u6237\u5df2\u6b20\u8d39"}}),
        STOP, "no_credit", "\u60a8"),
    "moonshot, no credit": (
        answered(429, {"error": {"message": "please check your plan", "type": "exceeded_current_quota_error"}}),
        STOP, "no_credit", "please check"),
    "xai, no credit": (
        answered(403, {"code": "not permitted", "error": "Your team has used all available credits."}),
        STOP, "no_credit", "Your team"),
    "dashscope": (
        answered(400, {"code": "InvalidParameter", "message": "Range of input length should be [1, 30720]"}),
        NEVER, "context_length_exceeded", "Range of"),
    "sambanova": (
        answered(400, {"error": {"message": "9001 tokens, but the maximum supported sequence length is just 8192!"}}),
        NEVER, "context_length_exceeded", "9001"),
    "vllm, beside the response": (
        {"response": {"status_code": 400, "request_id": "x", "body": None},
         "error": {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError"}},
        ELSEWHERE, "model_not_found", "The model"),
    "a gateway's page": (
        answered(502, "<html><head><title>502 Bad Gateway</title></head><center>nginx</center></html>"),
        RETRY, "http_5xx", "502 Bad Gateway nginx"),
    "a page that forbids": (
        answered(403, "<!DOCTYPE html><title>Blocked</title><h1>no</h1>"), STOP, "no_permission", "Blocked no"),
    "openrouter": (
        answered(400, {"error": {"message": "Provider returned error", "code": 400,
                                 "metadata": {"raw": json.dumps(INNER), "provider_name": "x"}}}),
        NEVER, "context_length_exceeded", "Provider returned error: This model's"),
    "openai, not run": (
        unanswered({"code": "batch_expired", "message": "could not be executed before the window expired"}),
        WAIT, "batch_expired", "could not"),
    "bedrock behind a gateway": (
        unanswered({"errorCode": 400, "errorMessage": "Too many input tokens."}),
        NEVER, "context_length_exceeded", "Too many"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_row_of_an_error_file_is_judged_by_its_providers_words(name: str) -> None:
    given, disposition, rule, message = LINES[name]
    raw = json.dumps({"id": "b", "custom_id": "a", **given}).encode()
    said = refusal(msgspec.json.decode(raw, type=batch_api.ResultLine))
    verdict = classify(said.status, said.code, said.type, said.message)
    assert (verdict.disposition, verdict.rule) == (disposition, rule)
    assert said.message is not None
    assert said.message.startswith(message)
    assert "<" not in said.message


@pytest.mark.parametrize("code", ["upstream_error", "rate_limit_exceeded", "internal_error"])
def test_words_beside_a_code_of_a_state_mean_no_status(code: str) -> None:
    error = {"code": code, "message": "aborted: Unsupported parameter: 'seed'"}
    raw = json.dumps({"custom_id": "a", **unanswered(error)}).encode()
    assert refusal(msgspec.json.decode(raw, type=batch_api.ResultLine)).status is None


def test_a_line_without_a_response_teaches_by_its_words() -> None:
    raw = json.dumps({"custom_id": "a", **LINES["together, a field"][0]}).encode()
    assert refusal(msgspec.json.decode(raw, type=batch_api.ResultLine)).status == 400
