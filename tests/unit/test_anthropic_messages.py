"""OpenAI's chat completions -> Anthropic's Messages: nothing is lost, and what has no counterpart is named."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params

from orchestrator.backends.anthropic.messages import translate
from orchestrator.backends.anthropic.results import completion
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.claude_rules import takes_sampling
from tests.support.examples import ample

Json = dict[str, Any]
OLD, NEW = "claude-sonnet-4-5", "claude-sonnet-5-5"
HELLO = [{"role": "user", "content": "hello"}]
PNG = "data:image/png;base64,iVBORw0="
PDF = "data:application/pdf;base64,JVBERi0="


def body(**fields: Any) -> Json:
    return {"model": OLD, "messages": HELLO, **fields}


def told(**fields: Any) -> Json:
    """The params that these fields of a body become, without those that every one has."""
    params, left_out = translate(body(**fields), 4096)
    assert left_out == ()
    plain = {"model": OLD, "messages": HELLO, "max_tokens": 4096}
    return {name: value for name, value in params.items() if plain.get(name) != value}


def conversation(*messages: Json) -> Json:
    params, _ = translate(body(messages=list(messages)), 10)
    return {name: params[name] for name in ("system", "messages") if name in params}


def say(role: str, content: Any, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


def text(words: str, **more: Any) -> Json:
    return {"type": "text", "text": words, **more}


def function(name: str = "look", **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, **more}}


def call(arguments: str, name: str = "look", id_: str = "call_1") -> Json:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def schema(**inner: Any) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": inner}}


def wanted(**inner: Any) -> Json:
    return {"output_config": {"format": {"type": "json_schema", "schema": inner}}}


TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
WORD = {"type": "string"}
FIELDS: dict[str, tuple[Json, Json]] = {
    "nothing": ({}, {}),
    "max_tokens": ({"max_tokens": 7}, {"max_tokens": 7}),
    "max_completion_tokens": ({"max_completion_tokens": 8, "max_tokens": 7}, {"max_tokens": 8}),
    "a stop": ({"stop": "END"}, {"stop_sequences": ["END"]}),
    "stops": ({"stop": ["a", "b"]}, {"stop_sequences": ["a", "b"]}),
    "no stops": ({"stop": []}, {}),
    "user": ({"user": "u1"}, {"metadata": {"user_id": "u1"}}),
    "safety_identifier": ({"safety_identifier": "s", "user": "s"}, {"metadata": {"user_id": "s"}}),
    "temperature": ({"temperature": 0}, {"temperature": 0}),
    "top_p and top_k": ({"top_p": 0.5, "top_k": 1}, {"top_p": 0.5, "top_k": 1}),
    "sampling as it is anyway": ({"temperature": 1, "top_p": 1.0}, {}),
    "a tool": ({"tools": [function()]}, {"tools": [TOOL]}),
    "a tool in full": (
        {"tools": [function(description="looks", parameters={"type": "object", "maxProperties": 3}, strict=False)]},
        {"tools": [{"name": "look", "description": "looks", "input_schema": {"type": "object", "maxProperties": 3}}]},
    ),
    "a strict tool": (
        {"tools": [function(parameters={"type": "object", "properties": {"a": WORD}}, strict=True)]},
        {
            "tools": [
                {
                    "name": "look",
                    "input_schema": {"type": "object", "properties": {"a": WORD}, "additionalProperties": False},
                    "strict": True,
                }
            ]
        },
    ),
    "a cached tool": (
        {"tools": [{**function(), "cache_control": {"type": "ephemeral"}}]},
        {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]},
    ),
    "tool_choice auto": ({"tools": [function()], "tool_choice": "auto"}, {"tools": [TOOL]}),
    "tool_choice none": (
        {"tools": [function()], "tool_choice": "none", "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
    ),
    "tool_choice required": (
        {"tools": [function()], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
    ),
    "tool_choice by name": (
        {"tools": [function()], "tool_choice": function()},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look"}},
    ),
    "one tool at a time": (
        {"tools": [function()], "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    "one named tool at a time": (
        {"tools": [function()], "tool_choice": function(), "parallel_tool_calls": False},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True}},
    ),
    "a choice among no tools": ({"tool_choice": "auto", "tools": [], "parallel_tool_calls": False}, {}),
    "plain text": ({"response_format": {"type": "text"}}, {}),
    "a schema": ({"response_format": schema(type="array", items=WORD)}, wanted(type="array", items=WORD)),
    "a schema's description": (
        {"response_format": {"type": "json_schema", "json_schema": {"description": "d", "schema": {"type": "null"}}}},
        wanted(type="null", description="d"),
    ),
    "objects are closed, at any depth": (
        {
            "response_format": schema(
                type="object",
                properties={"minimum": {"type": ["object", "null"]}, "b": {"anyOf": [{"type": "object"}, WORD]}},
            )
        },
        wanted(
            type="object",
            properties={
                "minimum": {"type": ["object", "null"], "additionalProperties": False},
                "b": {"anyOf": [{"type": "object", "additionalProperties": False}, WORD]},
            },
            additionalProperties=False,
        ),
    ),
    "limits are told in words": (
        {"response_format": schema(type="integer", minimum=1, maximum=9, description="how many")},
        wanted(type="integer", description="how many (minimum: 1, maximum: 9)"),
    ),
    "a list's shortest length is taken up to one": (
        {"response_format": schema(type="array", items={"type": "array", "minItems": 2}, minItems=1)},
        wanted(type="array", items={"type": "array", "description": "(minItems: 2)"}, minItems=1),
    ),
    "effort": ({"reasoning_effort": "high"}, {"output_config": {"effort": "high"}}),
    "the least effort": ({"reasoning_effort": "minimal"}, {"output_config": {"effort": "low"}}),
    "no effort": ({"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
    "a schema and effort": (
        {"response_format": schema(type="null"), "reasoning_effort": "low"},
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "null"}}, "effort": "low"}},
    ),
    "what is Anthropic's own": (
        {"thinking": {"type": "adaptive"}, "cache_control": {"type": "ephemeral"}},
        {"thinking": {"type": "adaptive"}, "cache_control": {"type": "ephemeral"}},
    ),
    "values that mean nothing": (
        {
            "n": 1, "stream": False, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "frequency_penalty": 0,
            "presence_penalty": 0.0, "modalities": ["text"], "verbosity": "medium",
        },
        {},
    ),
    "nulls": (dict.fromkeys(("seed", "n", "tools", "stop", "audio", "temperature", "foo", "response_format")), {}),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "params"), FIELDS.values(), ids=FIELDS)
def test_a_field_becomes(fields: Json, params: Json) -> None:
    assert told(**fields) == params


CALLED = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"a": [1]}}
CONVERSATIONS: dict[str, tuple[list[Json], Json]] = {
    "a word": ([say("user", "hi")], {"messages": [say("user", "hi")]}),
    "a system prompt": ([say("system", "be"), say("user", "hi")], {"system": "be", "messages": [say("user", "hi")]}),
    "several, in their order": (
        [say("system", "be"), say("developer", [text("kind")]), say("user", "hi")],
        {"system": [text("be"), text("kind")], "messages": [say("user", "hi")]},
    ),
    "consecutive messages of one role": (
        [say("user", "a"), say("user", [text("b")]), say("assistant", "c"), say("user", "d")],
        {"messages": [say("user", [text("a"), text("b")]), say("assistant", "c"), say("user", "d")]},
    ),
    "a call and its results": (
        [
            say("user", "x"),
            say("assistant", "", tool_calls=[call('{"a": [1]}'), call("", id_="call_2")]),
            say("tool", "one", tool_call_id="call_1"),
            say("tool", [text("two"), text("three")], tool_call_id="call_2"),
            say("user", "and?"),
        ],
        {
            "messages": [
                say("user", "x"),
                say("assistant", [CALLED, {**CALLED, "id": "call_2", "input": {}}]),
                say(
                    "user",
                    [
                        {"type": "tool_result", "tool_use_id": "call_1", "content": "one"},
                        {"type": "tool_result", "tool_use_id": "call_2", "content": [text("two"), text("three")]},
                        text("and?"),
                    ],
                ),
            ]
        },
    ),
    "a call without words": (
        [say("user", "x"), say("assistant", None, tool_calls=[call('{"a": [1]}')])],
        {"messages": [say("user", "x"), say("assistant", [CALLED])]},
    ),
    "a refusal": (
        [say("user", "x"), say("assistant", None, refusal="no"), say("user", "y")],
        {"messages": [say("user", "x"), say("assistant", "no"), say("user", "y")]},
    ),
    "a refusal beside words": (
        [say("user", "x"), say("assistant", "hm", refusal="no")],
        {"messages": [say("user", "x"), say("assistant", [text("hm"), text("no")])]},
    ),
    "a refusal among parts": (
        [say("user", "x"), say("assistant", [text("hm"), {"type": "refusal", "refusal": "no"}])],
        {"messages": [say("user", "x"), say("assistant", [text("hm"), text("no")])]},
    ),
    "pictures": (
        [
            say(
                "user",
                [
                    text("see"),
                    {"type": "image_url", "image_url": {"url": PNG}},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            )
        ],
        {
            "messages": [
                say(
                    "user",
                    [
                        text("see"),
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="},
                        },
                        {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                    ],
                )
            ]
        },
    ),
    "documents": (
        [
            say(
                "user",
                [
                    {"type": "file", "file": {"file_data": PDF, "filename": "a.pdf"}},
                    {"type": "file", "file": {"file_data": "http://x/b.pdf"}},
                ],
            )
        ],
        {
            "messages": [
                say(
                    "user",
                    [
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
                            "title": "a.pdf",
                        },
                        {"type": "document", "source": {"type": "url", "url": "http://x/b.pdf"}},
                    ],
                )
            ]
        },
    ),
    "a cached part": (
        [say("user", [text("long", cache_control={"type": "ephemeral"})])],
        {"messages": [say("user", [text("long", cache_control={"type": "ephemeral"})])]},
    ),
    # Only it can say that this is not taken: a text beside others is refused there when it is empty.
    "nothing but an empty text": ([say("user", "")], {"messages": [say("user", "")]}),
}


@pytest.mark.parametrize(("messages", "params"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation_becomes(messages: list[Json], params: Json) -> None:
    assert conversation(*messages) == params


IMAGE = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
LEFT_OUT: dict[str, tuple[Json, list[str]]] = {
    "what OpenAI keeps or caches": (
        {"store": True, "metadata": {}, "prompt_cache_key": "k", "service_tier": "flex"},
        ["store", "metadata", "prompt_cache_key", "service_tier"],
    ),
    "token probabilities": ({"logprobs": True, "top_logprobs": 3}, ["logprobs", "top_logprobs"]),
    "one of two users": ({"user": "a", "safety_identifier": "b"}, ["user"]),
    "names, each once": (
        {"messages": [say("user", "a", name="n"), say("system", "c", name="o"), say("user", "b", name="m")]},
        ["messages[].name", "messages[].role: the place of a later system message"],
    ),
    "a picture's detail": ({"messages": [say("user", [IMAGE])]}, ["messages[].content[].image_url.detail"]),
    "a cache hint for OpenAI": (
        {"messages": [say("user", [text("a", prompt_cache_breakpoint={"mode": "explicit"})])]},
        ["messages[].content[].prompt_cache_breakpoint"],
    ),
    "what an earlier answer thought": (
        {"messages": [*HELLO, say("assistant", "a", reasoning_content="hm", annotations=[]), *HELLO]},
        ["messages[].reasoning_content"],
    ),
}


@pytest.mark.parametrize(("fields", "names"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_says_nothing_of_the_answer_is_left_out_by_name(fields: Json, names: list[str]) -> None:
    assert list(translate(body(**fields), 10)[1]) == names


def messages(*parts: Json, role: str = "user", **more: Any) -> Json:
    return {"messages": [say(role, list(parts), **more)]}


def calling(given: Any) -> Json:
    return {"messages": [*HELLO, say("assistant", None, tool_calls=given)]}


def nested(levels: int) -> Json:
    found: Json = dict(WORD)
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return schema(**found)


def test_a_schema_may_have_a_hundred_levels() -> None:
    params, _ = translate(body(response_format=nested(99)), 10)
    assert params["output_config"]["format"]["schema"] == nested(99)["json_schema"]["schema"]


REFUSED: dict[str, tuple[Json, str]] = {
    "a schema of more levels": (
        {"response_format": nested(100)},
        "response_format.json_schema.schema" + ".items" * 100,
    ),
    "n": ({"n": 2}, "n"),
    "logit_bias": ({"logit_bias": {"5": -100}}, "logit_bias"),
    "seed": ({"seed": 0}, "seed"),
    "frequency_penalty": ({"frequency_penalty": 0.1}, "frequency_penalty"),
    "stream": ({"stream": True}, "stream"),
    "audio": ({"audio": {"voice": "x"}}, "audio"),
    "modalities": ({"modalities": ["text", "audio"]}, "modalities"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    "functions": ({"functions": []}, "functions"),
    "a field of no API": ({"temprature": 0}, "temprature"),
    "json_object": ({"response_format": {"type": "json_object"}}, "response_format.type"),
    "format of no kind": ({"response_format": "json"}, "response_format"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    "a schema that is none": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        "response_format.json_schema.schema",
    ),
    "items that are none": ({"response_format": schema(items=[WORD])}, "response_format.json_schema.schema.items"),
    "keys that are not listed": (
        {"response_format": schema(anyOf=[{"type": "object", "additionalProperties": WORD}])},
        "response_format.json_schema.schema.anyOf[0]",
    ),
    "open objects": (
        {"response_format": schema(properties={"a": {"type": "object", "additionalProperties": True}})},
        "response_format.json_schema.schema.properties.a",
    ),
    "effort": ({"reasoning_effort": "some"}, "reasoning_effort"),
    "effort in numbers": ({"reasoning_effort": 3}, "reasoning_effort"),
    "temperature above one": ({"temperature": 1.5}, "temperature"),
    "temperature in words": ({"temperature": "hot"}, "temperature"),
    "temperature, newer models": ({"temperature": 0, "model": NEW}, "temperature"),
    "top_p, newer models": ({"top_p": 0.9, "model": NEW}, "top_p"),
    "top_k, newer models": ({"top_k": 1, "model": NEW}, "top_k"),
    "a tool of another type": ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    "a tool without a name": ({"tools": [function(), {"type": "function"}]}, "tools[1].function"),
    "a tool's unknown field": ({"tools": [function(foo=1)]}, "tools[0].function.foo"),
    "tools that are not a list": ({"tools": {}}, "tools"),
    "a choice of another type": ({"tools": [function()], "tool_choice": {"type": "custom"}}, "tool_choice"),
    "a choice with more in it": ({"tools": [function()], "tool_choice": {**function(), "a": 1}}, "tool_choice"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice"),
    "no model": ({"model": None}, "model"),
    "no messages": ({"messages": None}, "messages"),
    "empty messages": ({"messages": []}, "messages"),
    "a system prompt alone": ({"messages": [say("system", "be")]}, "messages"),
    "a message that is none": ({"messages": ["hi"]}, "messages[0]"),
    "a role of no API": ({"messages": [say("function", "x")]}, "messages[0].role"),
    "no content": ({"messages": [say("user", None)]}, "messages[0].content"),
    "an assistant without any": ({"messages": [*HELLO, say("assistant", None)]}, "messages[1].content"),
    "a message's unknown field": ({"messages": [say("user", "a", foo=1)]}, "messages[0].foo"),
    "an earlier audio": ({"messages": [say("assistant", "a", audio={"id": "x"})]}, "messages[0].audio"),
    "audio in": (
        messages({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
        "messages[0].content[0].type",
    ),
    "a part's unknown field": (messages(text("a", foo=1)), "messages[0].content[0].foo"),
    "a picture that is none": (
        messages({"type": "image_url", "image_url": {"url": "/etc/x.png"}}),
        "messages[0].content[0].image_url.url",
    ),
    "a picture that is not in base64": (
        messages({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}),
        "messages[0].content[0].image_url.url",
    ),
    "a file by its id": (messages({"type": "file", "file": {"file_id": "f"}}), "messages[0].content[0].file.file_id"),
    "a file that is not a PDF": (
        messages({"type": "file", "file": {"file_data": "data:text/csv;base64,YQ=="}}),
        "messages[0].content[0].file.file_data",
    ),
    "a result without an id": ({"messages": [say("tool", "x")]}, "messages[0].tool_call_id"),
    "calls that are not a list": (calling({}), "messages[1].tool_calls"),
    "a custom call": (calling([{"type": "custom"}]), "messages[1].tool_calls[0].type"),
    "arguments that are not JSON": (calling([call("{")]), "messages[1].tool_calls[0].function.arguments"),
    "arguments that are a list": (calling([call("[]")]), "messages[1].tool_calls[0].function.arguments"),
}


@pytest.mark.parametrize(("fields", "name"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_otherwise_is_refused_by_name(fields: Json, name: str) -> None:
    with pytest.raises(InputError) as refusal:
        translate(body(**fields), 10)
    assert refusal.value.field == name


@pytest.mark.parametrize(
    "model",
    "claude-opus-4-7 claude-opus-4-8 claude-haiku-5-5 claude-sonnet-5 claude-fable-5-2 claude-5-opus claude-sonnet-10"
    " claude-opus-4.7 us.anthropic.claude-opus-5-v1".split(),
)
def test_newest_models_take_no_sampling_parameters(model: str) -> None:
    assert not takes_sampling(model)
    # 1 is what holds anyway, and they refuse even that.
    assert "temperature" not in translate(body(model=model, temperature=1, top_p=1), 10)[0]


@pytest.mark.parametrize(
    "model",
    "claude-3-5-sonnet-20241022 claude-3-opus claude-opus-4-20250514 claude-opus-4-1 claude-sonnet-4-5-20250929"
    " claude-haiku-4-5 claude-sonnet-4-6 claude-opus-4.6 claude-2 my-model".split(),
)
def test_older_models_take_them(model: str) -> None:
    assert translate(body(model=model, temperature=0.5), 10)[0]["temperature"] == 0.5


def outcome(given_body: Json) -> tuple[str | None, Json, tuple[str, ...]]:
    """The name under which a body is refused, or its params and what was left out."""
    try:
        return None, *translate(given_body, 10)
    except InputError as refusal:
        return refusal.field, {}, ()


def openai_fields() -> list[str]:
    parts = (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    )
    return sorted({name for part in parts for name in get_type_hints(part)})


@pytest.mark.parametrize("field", openai_fields())
def test_every_openai_field_is_translated_or_named(field: str) -> None:
    """Of the client's own list: what a body may hold, whether or not it was there when this was written."""
    values: Json = {"tool_choice": "required", "tools": [function()], "messages": [say("user", "other")]}
    value = values.get(field, {"model": "m", "stop": "x", "reasoning_effort": "low"}.get(field, 0.5))
    if field == "response_format":
        value = schema(type="null")
    if field == "parallel_tool_calls":
        value = False
    others = {"tools": [function()]} if field != "tools" else {}
    plain, _ = translate(body(**others), 10)
    named, params, left_out = outcome(body(**others) | {field: value})
    assert named == field if named else params != plain or left_out == (field,)


TEXT = st.text(max_size=20)
ARGUMENTS = st.dictionaries(TEXT, st.integers(-(2**53), 2**53) | TEXT | st.booleans() | st.none(), max_size=3)
CONTENT = TEXT | st.lists(TEXT.map(text), min_size=1, max_size=3)
CALLS = st.lists(
    st.builds(lambda given, name, id_: call(json.dumps(given), name, id_), ARGUMENTS, TEXT, TEXT), max_size=2
)


@st.composite
def spoken(draw: st.DrawFn) -> Json:
    role = draw(st.sampled_from(["system", "developer", "user", "assistant", "tool"]))
    content = draw(CONTENT)
    if role == "assistant":
        return say(role, content, tool_calls=draw(CALLS))
    return say(role, content, tool_call_id=draw(TEXT)) if role == "tool" else say(role, content)


def words(content: Any) -> list[str]:
    """The texts in content of either shape, the empty ones left out; calls and results told by what they hold."""
    if isinstance(content, str):
        return [content] if content else []
    found = []
    for part in content:
        if part["type"] == "text":
            found += words(part["text"])
        elif part["type"] == "tool_use":
            found.append(f"call {part['id']} {part['name']} {json.dumps(part['input'], sort_keys=True)}")
        else:
            found += [f"result {part['tool_use_id']}", *words(part["content"])]
    return found


def words_said(message: Json) -> list[str]:
    found = [f"result {message['tool_call_id']}"] if message["role"] == "tool" else []
    found += words(message["content"])
    for made in message.get("tool_calls", ()):
        given = json.loads(made["function"]["arguments"])
        found.append(f"call {made['id']} {made['function']['name']} {json.dumps(given, sort_keys=True)}")
    return found


@pytest.mark.slow
@given(st.lists(spoken(), max_size=6))
def test_no_word_of_a_conversation_is_lost(said: list[Json]) -> None:
    said = [*said, say("user", "and?")]
    found = conversation(*said)
    of_system = [message for message in said if message["role"] in ("system", "developer")]
    assert words(found.get("system", "")) == [word for message in of_system for word in words_said(message)]
    of_turns = [message for message in said if message not in of_system]
    assert [word for turn in found["messages"] for word in words(turn["content"])] == [
        word for message in of_turns for word in words_said(message)
    ]
    roles = [turn["role"] for turn in found["messages"]]
    assert all(one != other for one, other in pairwise(roles))


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
NAMES = st.sampled_from([*openai_fields(), *"role content type text name function schema json_schema id".split()])
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | TEXT, inner, max_size=4), max_leaves=12
)


@pytest.mark.slow
@settings(max_examples=ample(300))
@given(st.dictionaries(NAMES, JSON, max_size=5))
def test_whatever_a_body_holds_it_is_translated_or_refused_by_name(fields: Json) -> None:
    named, params, _ = outcome(body() | fields)
    assert named or json.dumps(params)


@pytest.mark.slow
@given(TEXT, ARGUMENTS)
def test_an_answer_can_be_sent_back_and_loses_nothing(said: str, arguments: Json) -> None:
    """An answer with a call, put into the next request as OpenAI's clients do it."""
    used = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": arguments}
    answer = completion({"content": [text(said), used]})["choices"][0]["message"]
    found = conversation(*HELLO, answer, say("tool", "r", tool_call_id="toolu_1"))
    assert words(found["messages"][1]["content"]) == words([text(said), used])
