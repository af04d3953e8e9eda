"""The reason in an error's body: each server's own shape, for the batch server and for the pipeline alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.batch_api import ResultLine, ResultResponse
from orchestrator.core.error_body import MAX_PAGE, read_error, read_error_value
from orchestrator.core.refused_fields import ProviderError, refused_field
from orchestrator.policy.results import refusal
from orchestrator.policy.row_errors import Disposition, classify
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.result_lines import error_body
from orchestrator.server.dispatch.retry import End

RECORDED = Path(__file__).resolve().parents[2] / "../shared/real-traffic/recorded.jsonl"
LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."

# body, and what is read of it: message, code, type, param
SHAPES: dict[str, tuple[Any, tuple[str | None, str | None, str | None, str | None]]] = {
    "openai": (
        {"error": {"message": "no", "type": "invalid_request_error", "param": "top_p", "code": "unsupported_value"}},
        ("no", "unsupported_value", "invalid_request_error", "top_p"),
    ),
    "a status as the code": ({"error": {"message": "no", "code": "400"}}, ("no", None, None, None)),
    "a number as the code": ({"error": {"message": "no", "code": 404}}, ("no", None, None, None)),
    "vllm, nested": (
        {"error": {"message": LONG, "type": "BadRequestError", "param": None, "code": 400}},
        (LONG, None, "BadRequestError", None),
    ),
    "sglang and old vllm, flat": (
        {"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400},
        ("no", None, "BadRequestError", None),
    ),
    "fastapi, a text": ({"detail": "Not Found"}, ("Not Found", None, None, None)),
    "fastapi, a list": (
        {
            "detail": [
                {"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"secret": 1}},
                {"type": "x", "loc": ["body", "messages", 0, "role"], "msg": "Input should be 'user'", "input": "s3"},
            ]
        },
        ("model: Field required; messages.0.role: Input should be 'user'", None, None, "model"),
    ),
    "mistral, a detail in the message": (
        {
            "object": "error",
            "message": {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs"}]},
            "type": "invalid_request_error",
            "code": None,
        },
        ("seed: Extra inputs", None, "invalid_request_error", "seed"),
    ),
    "mistral, flat": (
        {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "param": None, "code": "1500"},
        ("Invalid model: x", None, "invalid_model", None),
    ),
    "openrouter": (
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": "it is too hot"}}},
        ("Provider returned error: it is too hot", None, None, None),
    ),
    "openrouter, JSON behind": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": json.dumps({"error": {"message": LONG, "code": "context_length_exceeded"}})},
            }
        },
        (f"Provider returned error: {LONG}", "context_length_exceeded", None, None),
    ),
    "an error that is a text": ({"error": "model 'x' not found"}, ("model 'x' not found", None, None, None)),
    "tgi": (
        {"error": "Input validation error: too long", "error_type": "validation"},
        ("Input validation error: too long", None, "validation", None),
    ),
    "anthropic": (
        {"type": "error", "error": {"type": "not_found_error", "message": "model: x"}},
        ("model: x", None, "not_found_error", None),
    ),
    "gemini, in a list": ([{"error": {"code": 400, "message": "no", "status": "X"}}], ("no", None, None, None)),
    "cloudflare": ({"success": False, "errors": [{"code": 7003, "message": "no route"}]}, ("no route", *[None] * 3)),
    "bedrock": ({"message": "The provided model identifier is invalid."},
                ("The provided model identifier is invalid.", None, None, None)),
    "a detail that is an object": ({"detail": {"error": {"message": "no", "code": "c"}}}, ("no", "c", None, None)),
    "hugging face": ({"error": ["`x` must be above 0", "no"]}, ("`x` must be above 0; no", *[None] * 3)),
    "texts in a list": ({"detail": ["no"]}, ("no", *[None] * 3)),
    "spring": ({"status": 400, "error": "Bad Request", "message": "no"}, ("no", *[None] * 3)),
    "nest": ({"statusCode": 400, "error": "Bad Request", "message": ["no", "and no"]}, ("no; and no", *[None] * 3)),
    "spring without a message": ({"status": 404, "error": "Not Found", "path": "/x"}, ("Not Found", *[None] * 3)),
    "oauth": ({"error": "invalid_client", "error_description": "no"}, ("no", "invalid_client", None, None)),
    "databricks": ({"error_code": "BAD_REQUEST", "message": "no"}, ("no", "BAD_REQUEST", None, None)),
    "aws": ({"__type": "ValidationException", "Message": "no"}, ("no", "ValidationException", None, None)),
    "writer": ({"tpe": "x", "errors": [{"description": "no", "key": "k"}]}, ("no", *[None] * 3)),
    "apigee": ({"fault": {"faultstring": "no"}}, ("no", *[None] * 3)),
    "zod": ({"error": {"name": "ZodError", "issues": [{"message": "no", "path": ["n"]}]}}, ("no", *[None] * 3)),
    "azure, quoted within": (
        {"error": {"code": "BadRequest", "message": json.dumps({"error": {"message": LONG, "code": "too_long"}})}},
        (LONG, "too_long", None, None),
    ),
    "a page within": (
        {"error": {"message": "<html><title>502</title><b>gone</b></html>"}},
        ("502 gone", None, None, None),
    ),
    "a text that begins like JSON": ({"error": "{x} is not set"}, ("{x} is not set", *[None] * 3)),
    "an empty object": ({}, (None,) * 4),
    "null": (None, (None,) * 4),
    "a number": (5, (None,) * 4),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_the_reason_in_each_shape(name: str) -> None:
    body, expected = SHAPES[name]
    words = read_error(json.dumps(body).encode())
    assert (words.message, words.code, words.type, words.param) == expected
    assert words == read_error_value(body)


PAGES = {
    "text": (b"upstream connect error", "upstream connect error"),
    "html": (
        b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>p {color: red}</style></head>"
        b"<body><h1>502 Bad&nbsp;Gateway</h1><script>alert(1)</script><p>nginx &amp; more</p></body></html>",
        "502 Bad Gateway 502 Bad\xa0Gateway nginx & more",
    ),
    "html without a title": (b"<html><body>\n<p>full</p>\n</body></html>", "full"),
    "controls": ("a\x1b[31m\u202eb\r\n c".encode(), "a\\u001b[31m\\u202eb c"),
    "not utf-8": (b"\xff no", "\ufffd no"),
    "empty": (b"", None),
    "blank": (b" \n ", None),
    "long": (b"x" * 10_000, "x" * MAX_PAGE),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_reason_in_a_page(name: str) -> None:
    body, expected = PAGES[name]
    assert read_error(body).message == expected


TOO_LONG = (
    LONG,
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "`inputs` must have less than 512 tokens. Given: 600",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "prompt too long; exceeded max context length by 1119046 tokens",
    "prompt is too long: 3333404 tokens > 200000 maximum",
    "The input token count (1189806) exceeds the maximum number of tokens allowed (1048576).",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "litellm.ContextWindowExceededError: input is too long for requested model",
    "Please reduce the length of the messages or completion.",
    "too many tokens: size limit exceeded by 25836 tokens. Try using shorter or fewer inputs.",
)


def _bodies(message: str) -> list[Any]:
    return [
        {"error": {"message": message, "type": "BadRequestError", "code": 400}},
        {"error": {"message": message, "type": None, "code": "400"}},
        {"object": "error", "message": message, "code": 400},
        {"detail": message},
        {"detail": [{"loc": ["body"], "msg": message}]},
        {"object": "error", "message": {"detail": [{"msg": message}]}},
        {"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": message}}},
        {"error": message},
    ]


@pytest.mark.parametrize("message", TOO_LONG)
def test_a_context_that_is_too_long_is_recognised_in_every_shape(message: str) -> None:
    for body in _bodies(message):
        # Straight from a provider's result file, and through our own server.
        ours = error_body(Reply(End.ANSWERED, 400, json.dumps(body).encode()))
        assert json.loads(ours)["error"]["code"] == "context_length_exceeded", body
        for raw in (json.dumps(body).encode(), ours):
            found = _refused(400, raw)
            assert classify(found.status, found.code, found.type, found.message).code == "context_length_exceeded"


def _refused(status: int, body: bytes) -> Any:
    return refusal(ResultLine("a", response=ResultResponse(status, body=msgspec.Raw(body))))


@pytest.mark.parametrize(
    "message", ["/chat/completions: Invalid model name passed in model=gpt-x. Call `/v1/models`", "Invalid model: x"]
)
def test_a_status_written_as_the_code_does_not_hide_the_kind(message: str) -> None:
    for code in ("400", 400, None):
        found = _refused(400, json.dumps({"error": {"message": message, "type": "None", "code": code}}).encode())
        assert classify(found.status, found.code, found.type, found.message).rule == "model_not_found"


def test_a_rate_is_no_context() -> None:
    for message in ("Too many tokens, please wait before trying again.", "Rate limit reached for tokens per min"):
        found = _refused(429, json.dumps({"message": message}).encode())
        assert classify(found.status, found.code, found.type, found.message).disposition is Disposition.WAIT


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["error", "errors", "message", "detail", "code", "type", "msg", "loc", "metadata", "raw"]),
        inner, max_size=4,
    )
), max_leaves=20))  # fmt: skip
@pytest.mark.slow
@example([{"msg": ""}])
def test_whatever_a_server_says_it_is_read(value: Any) -> None:
    words = read_error(json.dumps(value).encode())
    assert words.message is None or words.message
    assert json.loads(error_body(Reply(End.ANSWERED, 400, json.dumps(value).encode())))["error"]["message"]


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED.exists(), reason="no recordings here")
def test_recorded_refusals_keep_their_words_and_their_meaning() -> None:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    refused = [line for line in lines if (line["status"] or 0) >= 400 and (line.get("expected") or {}).get("row")]
    assert len(refused) > 30
    for line in refused:
        raw, expected = json.dumps(line["response"]).encode(), line["expected"]
        ours = error_body(Reply(End.ANSWERED, line["status"], raw))
        assert json.loads(ours)["error"]["message"].startswith(expected["message_begins"]), line
        for body in (raw, ours):
            found = _refused(line["status"], body)
            assert found.message.startswith(expected["message_begins"])
            error = ProviderError(found.status, found.code, found.type, read_error(body).param, found.message)
            field = refused_field(error, line["request"] if isinstance(line["request"], dict) else {})
            verdict = classify(found.status, found.code, found.type, found.message, field)
            assert verdict.disposition.value in expected["row"], (line, verdict)


TOO_LONG = {
    "sglang": "Input length (5000 tokens) exceeds the maximum allowed length (4096 tokens). Use a shorter input.",
    "gemini": "The input token count exceeds the maximum number of tokens allowed 1048576.",
    "cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    "bedrock": "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input.",
    "qwen": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
    "zhipu": "Prompt exceeds max length",
    "llama.cpp, a vector": "input (4002 tokens) is too large to process. increase the physical batch size (512)",
    "moonshot": "Invalid request: Your request exceeded model token limit: 8192",
    "ai21": "Prompt has 5000 tokens, the model maximum is 4096 tokens",
    "tensorrt-llm": "default_max_tokens (-5) should be greater than 0, default = max_seq_len (4096) - 4101",
}
WRAPPED: dict[str, Any] = {
    "flat": lambda said: {"object": "error", "message": said, "code": 400},
    "a list": lambda said: {"detail": [{"loc": ["body", "messages"], "msg": said}]},
    "nested": lambda said: {"error": {"error": {"message": said}}},
    "a router's": lambda said: {"error": {"message": "Provider returned error", "metadata": {"raw": said}}},
}


@pytest.mark.parametrize("shape", WRAPPED)
@pytest.mark.parametrize("server", TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_by_each_servers_words(server: str, shape: str) -> None:
    words = read_error(json.dumps(WRAPPED[shape](TOO_LONG[server])).encode())
    assert words.is_context_too_long
    assert TOO_LONG[server] in (words.message or "")


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens",
        "Request too large for gpt-4o on tokens per min (TPM): Limit 30000. The input tokens must be reduced",
        "Rate limit: too many tokens, please wait before trying again.",
        "max_tokens: ensure this value is less than or equal to 10",
        "`max_tokens` must be at most `32768`: its maximum is less than the `context_window` for this model",
    ],
)
def test_a_bound_or_a_rate_is_no_prompt_that_is_too_long(said: str) -> None:
    assert not read_error(json.dumps({"error": {"message": said}}).encode()).is_context_too_long
