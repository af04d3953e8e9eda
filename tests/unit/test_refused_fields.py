"""Which field of a request a refusal names, in any provider's words, and what names none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.refused_fields import FieldFault, ProviderError, RefusedField, refused_field

FIELD, SETTING, RANGE = FieldFault
REAL = Path(__file__).resolve().parents[3] / "shared/real-traffic"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "term", "schema": {"type": "object"}}}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "stop"}, {"role": "user", "content": "temperature"}],
    "max_tokens": 100,
    "temperature": 0,
    "top_p": 0.5,
    "stop": ["\n"],
    "seed": 1,
    "user": "me",
    "n": 1,
    "logprobs": True,
    "response_format": SCHEMA,
    "reasoning_effort": "high",
    "tool_choice": "required",
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [{"role": "user", "content": "x"}],
    "max_output_tokens": 5,
    "temperature": 0,
    "include": ["message.output_text.logprobs"],
    "text": {"format": {"type": "json_schema", "name": "t", "schema": {}}},
    "store": False,
}
ANY_JSON = {**CHAT, "response_format": {"type": "json_object"}}
EMBEDDINGS = {"model": "m", "input": "x", "dimensions": 64, "encoding_format": "base64"}

# The body, (status, code, type, param, message), and what is refused.
NAMED: dict[str, tuple[dict[str, Any], ProviderError, str, FieldFault]] = {
    "a parameter, quoted": (
        CHAT, ProviderError(400, message="Parameter 'seed' is not supported here."), "seed", FIELD),
    "a parameter by its name": (CHAT, ProviderError(400, message="Model x does not accept the parameter stop."),
                                "stop", FIELD),
    "a parameter before the word": (CHAT, ProviderError(400, message="the stop parameter is unsupported here"),
                                    "stop", FIELD),
    "an argument behind a model": (CHAT, ProviderError(400, message="Argument not supported on this model: stop"),
                                   "stop", FIELD),
    "JSON mode": (CHAT, ProviderError(400, message="JSON mode is not enabled for this model"),
                  "response_format", FIELD),
    "tools side by side": ({**CHAT, "parallel_tool_calls": False},
                           ProviderError(400, message="The model does not support parallel tool calls"),
                           "parallel_tool_calls", FIELD),
    "a level of thinking": (
        CHAT, ProviderError(400, message="Thinking level MINIMAL is not supported for this model. Please retry."),
        "reasoning_effort", SETTING),
    "no thinking": (
        CHAT, ProviderError(400, message="Budget 0 is invalid. This model only works in thinking mode."),
        "reasoning_effort", SETTING),
    "an illegal type": (
        CHAT, ProviderError(400, message="the reasoning_effort field (expected type string) is illegal"),
        "reasoning_effort", FIELD),
    "a bound in other words": (
        CHAT, ProviderError(400, message="The maximum tokens you requested exceeds the model limit of 64000."),
        "max_tokens", RANGE),
    "a schema that is too deep": (
        CHAT, ProviderError(400, message="A schema in GenerationConfig in the request exceeds the maximum depth."),
        "response_format", FIELD),
    "what a developer says": (CHAT, ProviderError(400, message="Developer instruction is not enabled for gemma"),
                              "system", FIELD),
    "penalties in general": (
        {**CHAT, "frequency_penalty": 1},
        ProviderError(400, message="Penalty is not enabled for models/gemini-2.5-pro"),
        "frequency_penalty", FIELD),
    "several answers": (CHAT, ProviderError(400, message="Multiple candidates is not enabled for this model"),
                        "n", FIELD),
    "a bound of 0": (
        CHAT, ProviderError(400, message="Requested sample logprobs of 5, which is greater than max allowed: 0"),
        "logprobs", FIELD),
    "in camel case": (
        {**CHAT, "presence_penalty": 1},
        ProviderError(400, message="Argument not supported on this model: presencePenalty"),
        "presence_penalty", FIELD),
    "in camel case, before the word": (
        CHAT, ProviderError(400, message="This model doesn't support the stopSequences field."), "stop", FIELD),
    "in camel case, behind a model": (
        CHAT, ProviderError(400, message="Model grok-4 does not support parameter reasoningEffort."),
        "reasoning_effort", FIELD),
    "a path below the parameters": (
        {**CHAT, "enable_thinking": True},
        ProviderError(400, message="parameter.enable_thinking must be set to false for non-streaming calls"),
        "enable_thinking", FIELD),
    "a tool, bare": ({**CHAT, "tools": []}, ProviderError(400, message="library/small:2b does not support tools"),
                     "tools", FIELD),
    "a plain word before its refusal": (
        {**CHAT, "thinking": {"type": "adaptive"}},
        ProviderError(400, message="adaptive thinking is not supported on this model"), "thinking", FIELD),
    "another word for an effort": (CHAT, ProviderError(400, message='"small3" does not support thinking'),
                                   "reasoning_effort", FIELD),
    "behind an input that is invalid": (
        CHAT, ProviderError(400, message="AiError: Invalid input: response_format not supported for this model"),
        "response_format", FIELD),
    "another word for a schema": (CHAT, ProviderError(400, message="This model does not support guided decoding"),
                                  "response_format", FIELD),
    "a schema that cannot be compiled": (
        CHAT, ProviderError(400, message="Schema is too complex for compilation. Simplify the tools."),
        "response_format", FIELD),
    "a grammar that is too large": (
        CHAT, ProviderError(400, message="The compiled grammar is too large: reduce the number of strict tools."),
        "response_format", FIELD),
    "a bound below the window": (
        CHAT, ProviderError(400, message="`max_tokens` must be less than or equal to `32768`, the maximum value for"
                                         " it is less than the `context_window` of this model"),
        "max_tokens", RANGE),
    "a grammar that cannot be parsed": (
        CHAT, ProviderError(400, message="Failed to parse grammar"), "response_format", FIELD),
    "another language": (CHAT, ProviderError(400, message="不支持的参数: logprobs"), "logprobs", FIELD),
    "an argument that is supplied": (CHAT, ProviderError(400, message="Unrecognized request argument supplied: user"),
                                     "user", FIELD),
    "the param alone": (CHAT, ProviderError(400, None, None, "top_p", "Not supported with this model."),
                        "top_p", FIELD),
    "the param with a path": (RESPONSES, ProviderError(400, "unsupported_value", None, "text.format", "No."),
                              "text", FIELD),
    "its successor is not meant": (
        CHAT, ProviderError(400, message="'max_tokens' is not supported. Use 'max_completion_tokens' instead."),
        "max_tokens", FIELD),
    "spelled as the provider spells it": (
        CHAT, ProviderError(400, message="stop_sequences: not supported for this model"), "stop", FIELD),
    "an effort": (CHAT, ProviderError(400, message="This model does not support the effort parameter."),
                  "reasoning_effort", FIELD),
    "a level of effort": (
        CHAT, ProviderError(400, message="effort level 'max' is not supported. Supported levels: low, high."),
        "reasoning_effort", SETTING),
    "one of two": (CHAT, ProviderError(400, message="`temperature` and `top_p` cannot both be set"),
                   "top_p", FIELD),
    "deprecated": (CHAT, ProviderError(400, message="`temperature` is deprecated for this model."),
                   "temperature", FIELD),
    "only the default": (CHAT, ProviderError(400, message="invalid temperature: only 1 is allowed for this model"),
                         "temperature", FIELD),
    "a form of answers": (CHAT, ProviderError(400, message="This response_format type is unavailable now"),
                          "response_format", FIELD),
    "a schema, whose own name and properties are words": (
        CHAT, ProviderError(400, message="Invalid schema for response_format 'user': 'temperature' is required."),
        "response_format", FIELD),
    "a schema that vLLM has no grammar for": (
        CHAT, ProviderError(400, message='Grammar error: Unimplemented keys: ["uniqueItems"]'),
        "response_format", FIELD),
    "a grammar that cannot be made": (
        CHAT, ProviderError(400, message="Failed to convert the grammar from GBNF to Lark: unknown"),
        "response_format", FIELD),
    "a schema with too many states": (
        CHAT, ProviderError(400, message="The specified schema produces a constraint that has too many states for "
                            "serving."), "response_format", FIELD),
    "a schema of the Responses API": (
        RESPONSES, ProviderError(400, "invalid_json_schema", None, "text.format.schema", "Invalid schema."),
        "text", FIELD),
    "any JSON": (
        ANY_JSON, ProviderError(400, message="'response_format.type' must be 'json_schema' or 'text'"),
        "response_format.json_object", FIELD),
    "a place in the body": (
        CHAT, ProviderError(422, message="[{'loc': ('body', 'seed'), 'msg': 'Extra inputs are not permitted'}]"),
        "seed", FIELD),
    "a place in the body, in JSON": (
        CHAT, ProviderError(422, message='{"loc": ["body", "n"], "msg": "Extra inputs not permitted"}'), "n", FIELD),
    "a place with dots": (CHAT, ProviderError(422, message="body.user: Extra inputs not permitted"), "user", FIELD),
    "not allowed": (CHAT, ProviderError(403, message="You are not allowed to request logprobs from this model"),
                    "logprobs", FIELD),
    "llama.cpp": (
        CHAT,
        ProviderError(500, message="1 validation error: response_format.type Input should be 'text'"),
        "response_format", FIELD),
    "a list of what an answer has with it": (
        RESPONSES, ProviderError(400, message="logprobs are not supported with reasoning models."), "include", FIELD),
    "a role": (
        CHAT, ProviderError(400, "unsupported_value", None, "messages[0].role", "'system' is not supported."),
        "system", FIELD),
    "sizes of vectors": (EMBEDDINGS, ProviderError(400, message="This model does not support specifying dimensions."),
                         "dimensions", FIELD),
    "out of range": (
        RESPONSES, ProviderError(400, "integer_below_min_value", None, "max_output_tokens", "Expected a value >= 16"),
        "max_output_tokens", RANGE),
    "too much for the model": (
        CHAT, ProviderError(400, message="max_tokens: 100000 > 64000, which is the maximum allowed number of tokens"),
        "max_tokens", RANGE),
    "less than another field": (
        CHAT, ProviderError(400, message="`max_tokens` must be greater than `thinking.budget_tokens`."),
        "max_tokens", RANGE),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_a_refusal_names_a_field_of_the_request(case: str) -> None:
    sent, error, name, fault = NAMED[case]
    assert refused_field(error, sent) == RefusedField(name, fault)


@pytest.mark.parametrize("case", NAMED)
def test_a_field_that_was_not_sent_is_none_that_was_refused(case: str) -> None:
    _, error, _, _ = NAMED[case]
    assert refused_field(error, {"model": "m", "messages": [{"role": "user", "content": "x"}]}) is None


NOTHING = {
    "an overload that names a field": ProviderError(503, message="response_format is not supported right now"),
    "an overload with another status": ProviderError(
        400, message="Service temporarily does not support parameter `seed`. Please try again later."
    ),
    "an engine that starts": ProviderError(400, message="The engine is restarting; response_format not supported"),
    "an outage with a param": ProviderError(400, None, None, "seed", "seed is unavailable during maintenance"),
    "a rate": ProviderError(429, message="max_tokens is not available: rate limit reached"),
    "a gateway that broke": ProviderError(502, message="invalid response_format from upstream"),
    "an engine that broke": ProviderError(500, message="Internal error in logprobs processor"),
    "an engine whose connection broke": ProviderError(500, message="invalid logprobs: upstream connection reset"),
    "an answer nobody gave": ProviderError(None, message="temperature is not supported"),
    "a key": ProviderError(401, message="Incorrect API key provided for user"),
    "credit": ProviderError(402, message="max_tokens is not covered: add credits"),
    "a budget": ProviderError(422, "422", "budget_exceeded", None, "Budget exceeded for user 'user'"),
    "a text that is too long": ProviderError(
        400, message="maximum context length is 4096 tokens, you requested 100 in max_tokens. reduce the length"
    ),
    "a text, by its code": ProviderError(400, "context_length_exceeded", None, "max_tokens", "Too many tokens."),
    "a picture": ProviderError(400, "invalid_image_format", None, None, "You uploaded an unsupported image."),
    "a message of the row": ProviderError(400, "invalid_value", None, "messages[3]", "Invalid 'messages[3]'."),
    "a message, at first": ProviderError(400, message="messages.0: Input does not match; see `temperature`"),
    "an answer that did not fit": ProviderError(400, "json_validate_failed", None, None, "invalid response_format"),
    "a filter": ProviderError(400, "content_filter", None, "messages", "The response was filtered"),
    "a model": ProviderError(404, "model_not_found", None, "model", "The model `stop` does not exist"),
    "turns that do not alternate": ProviderError(
        400,
        "invalid_message",
        None,
        None,
        "After the system message(s), user message(s) should alternate with others",
    ),
    "a user without an account": ProviderError(400, message="This user is not allowed to use the API"),
    "the turn of the assistant": ProviderError(400, message="This model does not support assistant message prefill."),
    "no field": ProviderError(400, message="Provider returned error"),
    "nothing at all": ProviderError(400),
    "words of the language": ProviderError(400, message="We cannot stop for a user, and n is unknown"),
}


@pytest.mark.parametrize("case", NOTHING)
def test_what_is_about_no_field_teaches_nothing(case: str) -> None:
    assert refused_field(NOTHING[case], CHAT) is None


@pytest.mark.slow
@given(
    st.sampled_from([400, 403, 404, 422, 500, None]),
    st.none() | st.text(max_size=20),
    st.none() | st.text(max_size=40),
    st.text(max_size=300)
    | st.lists(st.sampled_from([*CHAT, "not", "loc", "[", "('body',", "use", "'", ":"])).map(" ".join),
    st.dictionaries(st.sampled_from([*CHAT, *RESPONSES]), st.none() | st.integers() | st.just([{}]) | st.just({})),
)
@settings(max_examples=20 * settings().max_examples)
def test_no_words_break_it_and_what_it_finds_was_sent(
    status: int | None, code: str | None, param: str | None, message: str, sent: dict[str, Any]
) -> None:
    found = refused_field(ProviderError(status, code, None, param, message), sent)
    assert found is None or found.name.split(".")[0] in {*sent, "system", "response_format"}


SENT = {
    **CHAT,
    "min_p": 0.1,
    "verbosity": "low",
    "chat_template_kwargs": {},
    "thinking": {"type": "enabled"},
    "tools": [],
    "tool_choice": "auto",
}
# Invented wordings, in no table: status, message, the field and what about it; None: it teaches nothing.
WORDINGS: list[tuple[int, str, str | None, FieldFault | None]] = [
    (400, "temperature: this knob is gone for reasoning deployments", "temperature", FIELD),
    (400, "We don't allow sampling temperature to be customised for m.", "temperature", FIELD),
    (400, "Parameter `seed` has no effect on this deployment and was rejected", "seed", FIELD),
    (422, "body -> stop: property is forbidden", "stop", FIELD),
    (400, "The model m can't be asked for log probabilities.", "logprobs", FIELD),
    (400, "The model m can\u2019t be asked for log probabilities.", "logprobs", FIELD),
    (400, "m: json_schema responses are unavailable on this plan", "response_format", FIELD),
    (400, "min_p isn't a valid option", "min_p", FIELD),
    (400, "got an unexpected keyword argument 'min_p'", "min_p", FIELD),
    (400, "The `stop` you gave is more than this deployment can do", "stop", FIELD),
    (400, "verbosity isn't something that m knows", "verbosity", FIELD),
    (400, "system messages aren't accepted by m", "system", FIELD),
    (400, "reasoning_effort may not be combined with temperature", "temperature", FIELD),
    (400, "seed conflicts with top_p", "top_p", FIELD),
    (400, "Malformed input request: #: extraneous key [seed] is not permitted", "seed", FIELD),
    (400, "\u53c2\u6570 seed \u4e0d\u53d7\u652f\u6301", "seed", FIELD),
    (400, "stop \u53c2\u6570\u65e0\u6548", "stop", FIELD),
    (403, "This tier may not request logprobs", "logprobs", FIELD),
    (400, "a tool choice of 'auto' requires --enable-tools to be set", "tool_choice", FIELD),
    (400, "Careful mode does not support this tool_choice", "tool_choice", FIELD),
    (400, "Thinking mode does not support this tool_choice", "tool_choice", FIELD),
    (422, "Input validation error: the grammar is not valid: it must have 'properties'", "response_format", FIELD),
    (400, "Failed to compile json grammar: unknown keyword", "response_format", FIELD),
    (500, "Grammar error: Unimplemented keys: ['x']", "response_format", FIELD),
    (500, "ValueError: the JSON schema contains features not supported by the backend", "response_format", FIELD),
    (500, "ValueError: temperature (0.2) is unsupported for the greedy decoder", "temperature", FIELD),
    (400, "max_tokens isn't known here", "max_tokens", FIELD),
    (400, "max_tokens has been removed, call it something else", "max_tokens", FIELD),
    # About a number, which another name of the bound would not mend.
    (400, "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", "max_tokens", RANGE),
    (400, "max_tokens: 512 tokens is more than m has", "max_tokens", RANGE),
    (400, "I cannot give you 512 `max_tokens`", "max_tokens", RANGE),
    (400, "temperature must be in [0, 1]", "temperature", RANGE),
    (400, "temperature: range: 0..1", "temperature", RANGE),
    (400, "Field 'temperature': type must be number, but is string", "temperature", RANGE),
    # About one tool, which says nothing of others.
    (400, "tools.0.custom.input_schema: Input does not match the expected shape.", "tools", SETTING),
    (400, "tools.3.custom: Invalid schema: Circular reference detected", "tools", SETTING),
    (500, "tools param requires --some flag", "tools", FIELD),
    (400, "7 is greater than the maximum of 5 - 'logprobs'", "logprobs", RANGE),
    # What a field lacks, no model takes.
    (400, "Missing required parameter: 'tools[0].function'.", "tools", RANGE),
    (400, "thinking.enabled.budget_tokens: Field required", "thinking", RANGE),
    (400, "-3 is less than the minimum of 0 - 'seed'", "seed", RANGE),
    (400, "top_p should be a number in (0, 1)", "top_p", RANGE),
    (400, "Input validation error: `top_p` must be > 0.0 and < 1.0", "top_p", RANGE),
    (400, "reasoning_effort: invalid value high", "reasoning_effort", SETTING),
    # About a state, an account, a text or nothing.
    (400, "Cannot reach the host of `response_format` grammars", None, None),
    (400, "logprobs worker is not responding", None, None),
    (400, "No healthy replica for parameter `tools`", None, None),
    (400, "seed: connection reset by peer, not supported", None, None),
    (400, "temperature sampler crashed, cannot go on", None, None),
    (400, "Account quota for `tools` is not enough", None, None),
    (422, "The `response_format` service timed out", None, None),
    (403, "Your project does not have access to model m", None, None),
    (403, "Request blocked by rule 1020 (temperature)", None, None),
    (400, "Unrecognized chat message.", None, None),
    (500, "the grammar worker crashed, not a valid state", None, None),
    (503, "Grammar error: no worker", None, None),
    (429, "max_tokens per minute isn't enough", None, None),
    (503, "seed isn't supported", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "message", "field", "fault"), WORDINGS)
def test_a_wording_that_nobody_has_listed_is_read(
    status: int, message: str, field: str | None, fault: FieldFault | None
) -> None:
    found = refused_field(ProviderError(status, message=message), SENT)
    assert found == (None if field is None or fault is None else RefusedField(field, fault))


ROWS = {
    1: "max_tokens", 2: "temperature", 3: "temperature", 4: "stop", 5: "logprobs", 6: "logprobs", 7: "max_tokens",
    8: "response_format", 9: "response_format", 10: "response_format", 11: "system", 13: "response_format",
    14: "response_format", 15: "top_p", 16: "reasoning_effort", 17: "reasoning_effort", 18: "reasoning_effort",
    19: "temperature", 20: "max_tokens", 21: "stop", 22: "response_format", 23: "temperature", 24: "temperature",
    25: "tool_choice", 26: "reasoning_effort", 27: "max_tokens", 29: "seed", 30: "response_format", 31: "stop",
    32: "temperature", 34: "dimensions", 35: "max_tokens",
}  # fmt: skip
"""The field that each line of the list of real refusals names; lines 12, 28 and 33 name none."""


@pytest.mark.skipif(not REAL.exists(), reason="the recordings are not part of the project")
def test_every_real_refusal_names_the_field_that_was_sent() -> None:
    found = {}
    for line in (REAL / "refusals.md").read_text(encoding="utf-8").splitlines():
        if (row := re.match(r"\| (\d+) \|", line)) is None:
            continue
        status, message = line.split(" | ")[4].split(" ", 1)
        refused = refused_field(ProviderError(int(status), message=message), CHAT | {"dimensions": 8})
        found[int(row[1])] = refused.name if refused is not None else None
    assert found == {number: ROWS.get(number) for number in range(1, 36)}


@pytest.mark.skipif(not REAL.exists(), reason="the recordings are not part of the project")
def test_recorded_refusals_of_content_models_and_accounts_name_no_field() -> None:
    named = []
    for line in (REAL / "recorded.jsonl").read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        if pair["status"] < 400 or not isinstance(pair["request"], dict) or not isinstance(pair["response"], dict):
            continue
        said = pair["response"].get("error", pair["response"])
        if not isinstance(said, dict):
            continue
        code, kind, param = (
            None if said.get(name) is None else str(said[name]) for name in ("code", "type", "param")
        )
        error = ProviderError(pair["status"], code, kind, param, str(said.get("message") or said.get("detail")))
        refused = refused_field(error, pair["request"])
        row = (pair.get("expected") or {}).get("row", [])
        if refused is not None:
            named.append(refused.name)
            assert pair["status"] == 400
            assert not row or ("never" in row) is (refused.fault is RANGE), error
        else:
            assert "elsewhere" not in row or code is None or "not" in code.lower() or len(row) > 1, error
    assert set(named) == {"output_config", "system", "web_search_options", "temperature", "tools"}
