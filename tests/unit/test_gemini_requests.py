"""Chat completions as Gemini's requests, and its answers as chat completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.backends.gemini.answers import batch_of, completion, error_of, result_line, status_of
from orchestrator.backends.gemini.dialect import GEMINI_RULES
from orchestrator.backends.gemini.requests import translate
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect import Recipient, dialect_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
OPENAPI = {
    "type": "OBJECT",
    "properties": {"a": {"type": "STRING"}},
    "required": ["a"],
    "propertyOrdering": ["a"],
}
ASK = [{"role": "user", "content": "Why?"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}


def of(**body: Any) -> dict[str, Any]:
    return translate({"model": "gemini-3.8-flash", "messages": ASK, **body})


def test_messages_are_turns_beside_the_systems_instruction() -> None:
    signed = {**CALL, "extra_content": {"google": {"thought_signature": "s"}}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUFB"}}
    found = of(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "See"}, picture]},
            {"role": "assistant", "content": None, "tool_calls": [signed]},
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            {"role": "user", "content": "So?"},
        ]
    )
    assert found["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert found["contents"] == [
        {"role": "user", "parts": [{"text": "See"}, {"inlineData": {"mimeType": "image/png", "data": "QUFB"}}]},
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "look", "args": {"at": 1}}, "thoughtSignature": "s"}],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "look", "response": {"result": "seen"}}}, {"text": "So?"}],
        },
    ]


def test_words_of_a_refusal_and_results_in_parts_are_part_of_the_conversation() -> None:
    found = of(
        messages=[
            *ASK,
            {"role": "assistant", "content": None, "refusal": "I may not.", "tool_calls": [CALL]},
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
        ]
    )
    assert found["contents"][1]["parts"][0] == {"text": "I may not."}
    assert found["contents"][2]["parts"][0]["functionResponse"]["response"] == {"result": "ab"}


def test_settings_stand_in_the_generation_config() -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}}
    found = of(temperature=0, top_p=0.5, max_completion_tokens=9, stop="x", seed=3, response_format=asked)
    assert found["generationConfig"] == {
        "temperature": 0,
        "topP": 0.5,
        "seed": 3,
        "maxOutputTokens": 9,
        "stopSequences": ["x"],
        "responseMimeType": "application/json",
        "responseSchema": OPENAPI,
    }
    assert of(reasoning_effort="low")["generationConfig"] == {"thinkingConfig": {"thinkingLevel": "low"}}
    older = translate({"model": "gemini-2.5-flash", "messages": ASK, "reasoning_effort": "none"})
    assert older["generationConfig"] == {"thinkingConfig": {"thinkingBudget": 0}}


def in_openapi(schema: dict[str, Any]) -> Any:
    asked = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
    return of(response_format=asked)["generationConfig"].get("responseSchema")


def test_a_schema_goes_out_in_openapis_form_as_batches_need_it() -> None:
    parts = {
        "optional": ({"type": ["string", "null"], "maxLength": 5}, {"type": "STRING", "nullable": True,
                                                                   "description": "(maxLength: 5)"}),
        "of a list": ({"enum": ["x", "y", None]}, {"type": "STRING", "format": "enum", "enum": ["x", "y"],
                                                   "nullable": True}),
        "number of a list": ({"enum": [1, 2]}, {"type": "INTEGER", "description": "(one of: [1, 2])"}),
        "list": ({"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 3},
                 {"type": "ARRAY", "items": {"type": "INTEGER", "minimum": 1}, "description": "(maxItems: 3)"}),
        "either": ({"oneOf": [{"type": "string"}, {"type": "integer"}]},
                   {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}]}),
        "referred": ({"$ref": "#/$defs/D"}, {"type": "STRING", "format": "date-time", "description": "when"}),
        "within": ({"allOf": [{"type": "boolean"}]}, {"type": "BOOLEAN"}),
    }  # fmt: skip
    definitions = {"D": {"type": "string", "format": "date-time", "description": "when"}}
    schema = {"type": "object", "properties": {name: given for name, (given, _) in parts.items()}}
    found = in_openapi({**schema, "$defs": definitions, "additionalProperties": False})
    assert found["properties"] == {name: told for name, (_, told) in parts.items()}
    assert found["propertyOrdering"] == [*parts]


@pytest.mark.parametrize(
    "part",
    [
        {}, {"type": "object"}, {"type": "object", "additionalProperties": {"type": "string"}}, {"enum": ["", "a"]},
        {"type": "array"}, {"not": {"type": "string"}}, {"$ref": "#"}, {"enum": [1, "a"]},
        {"anyOf": [{"type": "null"}]},
    ],
)  # fmt: skip
def test_a_schema_without_such_a_form_is_asked_for_in_the_prompt(part: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"]}
    assert in_openapi(schema) is None
    asked = {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}
    dialect = dialect_of(Recipient("gemini", table=GEMINI_RULES), "gemini-3.8-flash", "/v1/chat/completions")
    body = dialect.body({"messages": ASK, "response_format": asked})
    assert body["response_format"] == {"type": "json_object"}
    assert json.dumps(schema) in body["messages"][0]["content"]


def test_an_explicit_cache_is_named_as_it_is() -> None:
    found = of(cachedContent="cachedContents/c", response_format={"type": "json_object"})
    assert found["cachedContent"] == "cachedContents/c"
    assert found["generationConfig"] == {"responseMimeType": "application/json"}


def test_functions_may_be_forced() -> None:
    found = of(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}})
    assert found["tools"] == [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": SCHEMA}]}]
    config = {"mode": "ANY", "allowedFunctionNames": ["look"]}
    assert found["toolConfig"] == {"functionCallingConfig": config}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"n": 2}, "n"),
        ({"stream": True}, "stream"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        (
            {"cachedContent": "cachedContents/c", "messages": [{"role": "system", "content": "x"}, *ASK]},
            "cachedContent",
        ),
        ({"cachedContent": "cachedContents/c", "tools": [TOOL]}, "cachedContent"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "tool_call_id": "?", "content": ""}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": ""}]}, "messages[0].role"),
        ({"messages": [{**ASK[0], "audio": {"id": "a"}}]}, "messages[0].audio"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "foo": 1}]}]},
            "messages[0].content[0].foo",
        ),
    ],
)
def test_what_has_no_counterpart_is_named(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        of(**body)
    assert caught.value.field == field


def test_an_answer_is_a_chat_completion_with_all_its_tokens() -> None:
    parts = [
        {"text": "hm", "thought": True},
        {"text": "yes"},
        {"functionCall": {"name": "look", "args": {"at": 1}, "id": "g1"}, "thoughtSignature": "s"},
        {"executableCode": {"code": "1"}},
    ]
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 2,
        "cachedContentTokenCount": 4,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 7,
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 3}],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 1}, {"modality": "TEXT", "tokenCount": 3}],
        "serviceTier": "standard",
    }
    candidate = {"content": {"parts": parts, "role": "model"}, "finishReason": "STOP"}
    found = completion({"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3.8-flash"})
    [choice] = found["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "yes"
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert choice["message"]["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "s"}}
    assert choice["message"]["other_content"] == [{"executableCode": {"code": "1"}}]
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (12, 12)
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 4, "audio_tokens": 2}
    assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 7
    assert found["service_tier"] == "standard"


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        ({"candidates": [{"finishReason": "MAX_TOKENS"}]}, "length"),
        ({"candidates": [{"finishReason": "SAFETY"}]}, "content_filter: SAFETY"),
        (
            {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]},
            "function_call_filter: MALFORMED_FUNCTION_CALL",
        ),
        ({"promptFeedback": {"blockReason": "OTHER"}}, "content_filter: OTHER"),
        ({"candidates": [{}]}, None),
    ],
)
def test_ends_are_told_in_our_words(answer: dict[str, Any], finish: str | None) -> None:
    [choice] = completion(answer)["choices"]
    assert choice["finish_reason"] == finish
    assert choice["message"]["content"] is None


def test_result_lines_are_openais() -> None:
    failed = json.loads(result_line(b'{"key": "a", "error": {"code": 8, "message": "slow"}}'))
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("a", 429)
    assert failed["response"]["body"]["error"]["message"] == "slow"
    inline = json.loads(result_line(b'{"metadata": {"key": "b"}, "response": {"candidates": []}}'))
    assert (inline["custom_id"], inline["response"]["status_code"]) == ("b", 200)
    assert json.loads(result_line(b'{"key": "c"}'))["error"]["code"] == "unknown_result"
    assert result_line(b"{torn") == b"{torn"


def test_an_operation_is_a_batch() -> None:
    facts = {
        "displayName": "orch_shard=job-1.001 orch_home=home-1",
        "state": "BATCH_STATE_SUCCEEDED",
        "createTime": "2026-07-21T16:05:49.689379878Z",
        "batchStats": {"requestCount": "2", "successfulRequestCount": "2"},
        "output": {"responsesFile": "files/batch-1"},
    }
    found = batch_of({"name": "batches/1", "metadata": facts, "done": True})
    assert isinstance(found, dict)
    assert (found["id"], found["status"], found["output_file_id"]) == ("1", "succeeded", "batch-1")
    assert found["metadata"] == {"orch_shard": "job-1.001", "orch_home": "home-1"}
    assert found["request_counts"] == {"total": "2", "completed": "2"}
    assert batch_of("nothing") == "nothing"
    assert batch_of({"name": "batches/1", "metadata": ["odd"], "done": True}) == {}


def test_a_key_that_is_not_valid_is_the_accounts_matter() -> None:
    words = "API key not valid. Please pass a valid API key."
    body = {"error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}}
    assert status_of(body, 400) == 401
    assert error_of(body)["message"] == words
