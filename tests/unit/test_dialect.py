"""What models of providers take of a request: each refusal that was seen, by a body of our own."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.types import AllModels, ChatModel
from pydantic import TypeAdapter

from orchestrator.backends.package import rules_for
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.policy.dialect import (
    Dialect,
    OwnRule,
    Recipient,
    Structured,
    describe,
    dialect_of,
    priced_as,
    provider_at,
)
from orchestrator.policy.dialect.strict_schemas import strict_schema
from orchestrator.policy.max_tokens import most_tokens
from orchestrator.settings.backends import Backend
from orchestrator.settings.task_spec import Task

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
INFERENCE_PROFILE = "arn:aws:bedrock:us-east-1:123456789012:inference-profile"
ASKED = [{"role": "user", "content": "When does it end?"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
# That of the README: an object that is not closed.
SCHEMA = {
    "type": "object",
    "properties": {"end_date": {"type": "string"}, "renewable": {"type": "boolean"}},
    "required": ["end_date", "renewable"],
}


def format_of(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "term", "schema": schema, "strict": True}}


def at(provider: str, model: str, endpoint: str = CHAT, refused: frozenset[str] = frozenset()) -> Dialect:
    return dialect_of(Recipient(provider, table=rules_for(provider)), model, endpoint, refused)


def sent(dialect: Dialect, drop: bool = False, **fields: Any) -> dict[str, Any]:
    """The body as it is written into a line, which must be what `body` says."""
    body = {"model": "alias", "messages": ASKED, **fields}
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body}
    written = json.loads(dialect.line(json.dumps(line).encode(), drop=drop))
    assert written["body"].pop("model") == dialect.name
    assert written["body"] == dialect.body(body, drop=drop)
    return dict(written["body"])


LOST = [
    # provider, model, endpoint, fields, the field that is lost
    ("openai", "gpt-5-nano", CHAT, {"temperature": 0}, "temperature"),
    ("openai", "gpt-5-mini-2025-08-07", CHAT, {"temperature": 0.2}, "temperature"),
    ("openai", "o3", CHAT, {"temperature": 0}, "temperature"),
    ("azure", "gpt-5", CHAT, {"temperature": 0}, "temperature"),
    ("other", "openai/gpt-5-nano", CHAT, {"temperature": 0}, "temperature"),
    ("openai", "gpt-5.6-sol", CHAT, {"temperature": 0}, "temperature"),
    ("openai", "gpt-6.1-terra", CHAT, {"temperature": 0}, "temperature"),
    ("openai", "gpt-5.4", CHAT, {"temperature": 0, "reasoning_effort": "low"}, "temperature"),
    ("openai", "o4-mini", RESPONSES, {"temperature": 0}, "temperature"),
    ("openai", "gpt-5", RESPONSES, {"top_p": 0.5}, "top_p"),
    ("openai", "gpt-4o", CHAT, {"temperature": 2.5}, "temperature"),
    ("openai", "gpt-4o", RESPONSES, {"temperature": 2.5}, "temperature"),
    ("azure", "our-deployment", CHAT, {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ("mistral", "mistral-small-latest", CHAT, {"temperature": 1.8}, "temperature"),
    ("moonshot", "kimi-k2-0905-preview", CHAT, {"temperature": 1.2}, "temperature"),
    ("groq", "llama-3.3-70b-versatile", CHAT, {"temperature": 2.1}, "temperature"),
    ("openai", "gpt-5-mini", CHAT, {"stop": ["."]}, "stop"),
    ("openai", "o3", CHAT, {"stop": ["."]}, "stop"),
    ("openai", "gpt-5", CHAT, {"logprobs": True}, "logprobs"),
    ("openai", "o1", CHAT, {"logprobs": True}, "logprobs"),
    ("openai", "gpt-5", RESPONSES, {"include": ["message.output_text.logprobs"]}, "logprobs"),
    ("openai", "gpt-5", CHAT, {"presence_penalty": 1}, "presence_penalty"),
    ("openai", "gpt-5", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("openai", "gpt-5.6", CHAT, {"reasoning_effort": "minimal"}, "reasoning_effort"),
    ("openai", "gpt-4o", CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    ("openai", "gpt-6.1-sol", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("openai", "gpt-5.1-chat-latest", CHAT, {"stop": ["."]}, "stop"),
    ("openai", "o1", CHAT, {"n": 2}, "n"),
    ("openai", "gpt-5.4", CHAT, {"tools": TOOLS, "reasoning_effort": "low"}, "reasoning_effort"),
    ("azure", "gpt-5.5", CHAT, {"tools": TOOLS, "reasoning_effort": "high"}, "reasoning_effort"),
    ("openai", "gpt-5.6-luna", CHAT, {"tools": TOOLS, "reasoning_effort": "low"}, "tools"),
    ("openai", "gpt-6-luna", CHAT, {"tools": TOOLS}, "tools"),
    ("openai", "gpt-5.5", CHAT, {"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    ("azure", "gpt-4.1", RESPONSES, {"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
    ("openai", "gpt-5-pro", CHAT, {"seed": 7}, "seed"),
    ("openai", "gpt-4o", RESPONSES, {"seed": 7}, "seed"),
    ("openai", "text-embedding-ada-002", EMBEDDINGS, {"dimensions": 256}, "dimensions"),
    ("openai", "text-embedding-3-small", EMBEDDINGS, {"dimensions": 3000}, "dimensions"),
    ("groq", "llama-3.3-70b-versatile", CHAT, {"logprobs": True}, "logprobs"),
    ("groq", "llama-3.3-70b-versatile", CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    ("groq", "qwen/qwen3-32b", CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    ("groq", "openai/gpt-oss-120b", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("xai", "grok-4", CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    ("xai", "grok-4.3", CHAT, {"reasoning_effort": "xhigh"}, "reasoning_effort"),
    ("xai", "grok-4.5", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("xai", "grok-4.6", CHAT, {"reasoning_effort": "max"}, "reasoning_effort"),
    ("xai", "grok-3-mini", CHAT, {"reasoning_effort": "medium"}, "reasoning_effort"),
    ("xai", "grok-build-0.1", CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    ("xai", "grok-build-0.1", CHAT, {"stop": ["."]}, "stop"),
    ("moonshot", "kimi-k2.6", CHAT, {"n": 2}, "n"),
    ("moonshot", "kimi-k2.6", CHAT, {"thinking": {"type": "disabled"}, "temperature": 1}, "temperature"),
    ("moonshot", "kimi-k2.7-code", CHAT, {"thinking": {"type": "disabled"}}, "thinking"),
    ("moonshot", "kimi-k2.5", CHAT, {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}, "reasoning_effort"),
    ("moonshot", "kimi-k3", CHAT, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ("moonshot", "kimi-k2.6", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("moonshot", "kimi-k3", CHAT, {"reasoning_effort": "medium"}, "reasoning_effort"),
    ("mistral", "mistral-small-latest", CHAT, {"reasoning_effort": "medium"}, "reasoning_effort"),
    ("mistral", "ministral-8b-2512", CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    ("mistral", "mistral-small-latest", CHAT, {"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ("mistral", "magistral-medium-latest", CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    ("gemini", "gemini-2.5-flash", CHAT, {"presence_penalty": 1}, "presence_penalty"),
    ("gemini", "gemini-2.5-pro", CHAT, {"logprobs": True}, "logprobs"),
    ("vertex", "gemini-3.5-flash", CHAT, {"logprobs": True}, "logprobs"),
    ("vertex", "gemini-3.8-flash", CHAT, {"frequency_penalty": 1}, "frequency_penalty"),
    ("gemini", "gemini-3.8-flash", CHAT, {"reasoning_effort": "minimal"}, "reasoning_effort"),
    ("vertex", "gemini-3.1-pro-preview", CHAT, {"reasoning_effort": "minimal"}, "reasoning_effort"),
    ("gemini", "gemini-2.5-pro", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("gemini", "gemini-2.0-flash", CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    ("gemini", "gemini-3.6-flash", CHAT, {"temperature": 0}, "temperature"),
    ("vertex", "gemini-3.5-flash-lite", CHAT, {"top_p": 0.5}, "top_p"),
    ("cohere", "command-a-03-2025", CHAT, {"stop": ["."]}, "stop"),
    ("cohere", "command-a-03-2025", CHAT, {"top_p": 1}, "top_p"),
    ("cohere", "command-a-03-2025", CHAT, {"presence_penalty": -1}, "presence_penalty"),
    ("cohere", "command-a-03-2025", CHAT, {"frequency_penalty": 1.5}, "frequency_penalty"),
    ("cohere", "command-a-03-2025", CHAT, {"reasoning_effort": "high"}, "reasoning_effort"),
    ("cohere", "command-a-03-2025", CHAT, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ("bedrock", "us.anthropic.claude-opus-5", CHAT, {"temperature": 0.5}, "temperature"),
    ("bedrock", "us.anthropic.claude-haiku-4-5-20251001-v1:0", CHAT, {"temperature": 0.5, "top_p": 0.5}, "top_p"),
    ("bedrock", "us.anthropic.claude-haiku-4-5-20251001-v1:0", CHAT, {"stop": ["\n"]}, "stop"),
    ("bedrock", "global.xai.grok-4.6", CHAT, {"top_p": 0.5}, "top_p"),
    ("bedrock", "us.openai.gpt-6-sol", CHAT, {"temperature": 0}, "temperature"),
    ("bedrock", "openai.gpt-oss-20b-1:0", CHAT, {"stop": ["x"]}, "stop"),
    ("bedrock", "qwen.qwen3-32b-v1:0", CHAT, {"stop": ["x"]}, "stop"),
    ("bedrock", f"{INFERENCE_PROFILE}/us.anthropic.claude-opus-5", CHAT, {"temperature": 0}, "temperature"),
    ("mistral", "mistral-large-latest", CHAT, {"logprobs": True}, "logprobs"),
    ("xai", "grok-4.3", CHAT, {"stop": ["."]}, "stop"),
    ("xai", "grok-3-mini", CHAT, {"stop": ["."]}, "stop"),
    ("moonshot", "kimi-k2.6", CHAT, {"temperature": 0}, "temperature"),
    ("deepseek", "deepseek-reasoner", CHAT, {"logprobs": True}, "logprobs"),
    ("deepseek", "deepseek-v4-flash", CHAT, {"temperature": 0}, "temperature"),
    ("deepseek", "deepseek-v4-pro", CHAT, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ("anthropic", "claude-haiku-4-5", CHAT, {"temperature": 0.2, "top_p": 0.5}, "top_p"),
    ("anthropic", "claude-opus-4-1-20250805", CHAT, {"temperature": 0.2, "top_p": 0.5}, "top_p"),
    ("anthropic", "claude-opus-4-7", CHAT, {"temperature": 0}, "temperature"),
    ("anthropic", "claude-mythos-preview", CHAT, {"temperature": 0}, "temperature"),
    ("anthropic", "claude-sonnet-5-5", CHAT, {"top_k": 4}, "top_k"),
    ("anthropic", "claude-sonnet-4-5", CHAT, {"temperature": 1.5}, "temperature"),
    ("anthropic", "claude-haiku-4-5", CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    ("anthropic", "claude-opus-4-6", CHAT, {"reasoning_effort": "xhigh"}, "reasoning_effort"),
    ("anthropic", "claude-opus-4-8", CHAT, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking"),
    ("anthropic", "claude-sonnet-4-5", CHAT, {"thinking": {"type": "adaptive"}}, "thinking"),
    (
        "anthropic",
        "claude-sonnet-4-5",
        CHAT,
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 512},
        "thinking",
    ),
    (
        "anthropic",
        "claude-sonnet-4-5",
        CHAT,
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4096, "temperature": 0},
        "temperature",
    ),
    (
        "anthropic",
        "claude-opus-5",
        CHAT,
        {"thinking": {"type": "disabled"}, "reasoning_effort": "max"},
        "reasoning_effort",
    ),
    ("anthropic", "claude-haiku-4-5", CHAT, {"stop": ["\n"]}, "stop"),
    ("anthropic", "claude-fable-5", CHAT, {"tool_choice": "required"}, "tool_choice"),
    ("anthropic", "claude-sonnet-5-5", CHAT, {"tool_choice": "required"}, "tool_choice"),
    (
        "anthropic",
        "claude-opus-4-6",
        CHAT,
        {"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 4096, "tool_choice": "required"},
        "tool_choice",
    ),
    ("anthropic", "claude-opus-5-5", CHAT, {"reasoning_effort": "none"}, "reasoning_effort"),
    ("anthropic", "claude-haiku-4-5", CHAT, {"seed": 7}, "seed"),
    ("anthropic", "claude-haiku-4-5", CHAT, {"logprobs": True}, "logprobs"),
]


@pytest.mark.parametrize(("provider", "model", "endpoint", "fields", "field"), LOST)
def test_a_setting_that_a_model_does_not_take_is_named(
    provider: str, model: str, endpoint: str, fields: dict[str, Any], field: str
) -> None:
    dialect = at(provider, model, endpoint)
    lost = dialect.losses(fields)
    assert [loss.field for loss in lost] == [field]
    assert model.split("/")[-1] in lost[0].reason or dialect.name in lost[0].reason
    others = {name: value for name, value in fields.items() if name not in (field, "include")}
    assert dialect.losses(others) == ()


@pytest.mark.parametrize(("provider", "model", "endpoint", "fields", "field"), LOST)
def test_under_drop_it_is_left_out_where_it_may_be(
    provider: str, model: str, endpoint: str, fields: dict[str, Any], field: str
) -> None:
    dialect = at(provider, model, endpoint)
    body = dialect.body(fields, drop=True)
    if field == "dimensions":
        assert body["dimensions"] == fields["dimensions"], "the size of a vector is what the task is about"
    else:
        assert dialect.losses(body) == ()


@pytest.mark.parametrize(
    "at_claude", [("anthropic", "claude-sonnet-4-5"), ("bedrock", "anthropic.claude-sonnet-4-5")]
)
def test_a_temperature_that_is_left_out_takes_no_other_setting_along(at_claude: tuple[str, str]) -> None:
    body = at(*at_claude).body({"temperature": 1.5, "top_p": 0.5}, drop=True)
    assert body == {"top_p": 0.5}


@pytest.mark.parametrize("field", ["stop_sequences", "output_config", "output_format"])
def test_anthropics_own_name_of_a_setting_is_told_by_ours(field: str) -> None:
    [loss] = at("anthropic", "claude-sonnet-4-6").losses({field: {"x": 1}})
    assert f"takes {field} as " in loss.reason


def test_anthropics_chat_completions_ignore_schemas_and_efforts() -> None:
    backend = TypeAdapter(Backend).validate_python(
        {"kind": "sync", "location": "hosted", "api_key_env": "K", "base_url": "https://api.anthropic.com/v1"}
    )
    dialect = dialect_of(recipient_of(backend), "claude-sonnet-4-6", CHAT)
    [message] = sent(dialect, response_format=format_of(SCHEMA)).pop("messages")
    assert "end_date" in message["content"]
    assert "response_format" not in dialect.body({"response_format": format_of(SCHEMA), "messages": ASKED})
    assert [loss.field for loss in dialect.losses({"reasoning_effort": "low"})] == ["reasoning_effort"]
    assert [loss.field for loss in dialect.losses({"stop": [" "]})] == ["stop"]
    native = at("anthropic", "claude-sonnet-4-6").body({"response_format": format_of(SCHEMA), "messages": ASKED})
    assert native["response_format"]["type"] == "json_schema"


TAKEN = [
    ("openai", "gpt-4o-mini", CHAT, {"temperature": 0, "stop": ["."], "logprobs": True, "max_tokens": 9}),
    ("openai", "gpt-5-chat-latest", CHAT, {"temperature": 0}),
    ("openai", "gpt-5.4-nano", CHAT, {"temperature": 0}),
    ("openai", "gpt-5.6", CHAT, {"temperature": 0, "reasoning_effort": "none"}),
    ("openai", "o3-mini", CHAT, {"stop": ["."]}),
    ("openai", "gpt-5-nano", CHAT, {"temperature": 1, "top_p": 1, "presence_penalty": 0, "logprobs": False}),
    ("openai", "text-embedding-3-small", EMBEDDINGS, {"dimensions": 256}),
    ("local", "gpt-5-nano", CHAT, {"temperature": 0, "stop": ["."], "logprobs": True}),
    ("other", "qwen3-32b", CHAT, {"temperature": 0, "stop": ["."], "logprobs": True}),
    ("anthropic", "claude-sonnet-4-0", CHAT, {"temperature": 0.2, "top_p": 0.5}),
    ("anthropic", "claude-opus-4-6", CHAT, {"reasoning_effort": "max"}),
    ("anthropic", "claude-opus-4-8", CHAT, {"reasoning_effort": "xhigh", "thinking": {"type": "adaptive"}}),
    ("anthropic", "claude-opus-4-6", CHAT, {"thinking": {"type": "adaptive"}, "tool_choice": "required"}),
    ("anthropic", "claude-haiku-4-5", CHAT, {"stop": ["END", "\n\nHuman:"], "temperature": 0}),
    ("openai", "gpt-5.6-luna", CHAT, {"tools": TOOLS, "reasoning_effort": "none"}),
    ("openai", "gpt-6.1-terra", CHAT, {"prompt_cache_options": {"mode": "explicit"}}),
    ("azure", "our-deployment", CHAT, {"prompt_cache_options": {"mode": "explicit"}}),
    ("openai", "gpt-5.4", CHAT, {"tools": TOOLS}),
    ("openai", "gpt-5-mini", CHAT, {"tools": TOOLS, "reasoning_effort": "high"}),
    ("openai", "gpt-5.6", RESPONSES, {"tools": TOOLS}),
    ("xai", "grok-3", CHAT, {"stop": ["."]}),
    ("xai", "grok-4.20-multi-agent", CHAT, {"reasoning_effort": "xhigh"}),
    ("xai", "grok-4.3", CHAT, {"reasoning_effort": "none"}),
    ("moonshot", "kimi-k3", CHAT, {"reasoning_effort": "max"}),
    ("moonshot", "kimi-k2.6", CHAT, {"thinking": {"type": "disabled"}, "temperature": 0.6}),
    ("moonshot", "kimi-k2.6", CHAT, {"thinking": {"type": "disabled"}, "tool_choice": "required"}),
    ("deepseek", "deepseek-v4-flash", CHAT, {"thinking": {"type": "disabled"}, "temperature": 0}),
    ("deepseek", "deepseek-v4-flash", CHAT, {"tools": TOOLS, "tool_choice": "auto", "reasoning_effort": "max"}),
    ("deepseek", "deepseek-chat", CHAT, {"temperature": 0, "tools": TOOLS, "tool_choice": "required"}),
    ("mistral", "mistral-small-latest", CHAT, {"reasoning_effort": "high"}),
    ("vertex", "gemini-2.5-flash", CHAT, {"logprobs": True, "top_logprobs": 2, "presence_penalty": -1.5}),
    ("gemini", "gemini-3.5-flash", CHAT, {"temperature": 0, "seed": 7, "reasoning_effort": "minimal"}),
    ("gemini", "gemini-2.5-flash-lite", CHAT, {"reasoning_effort": "none"}),
    ("bedrock", "us.amazon.nova-lite-v1:0", CHAT, {"temperature": 0, "top_p": 0.5, "stop": ["x"]}),
    ("bedrock", "anthropic.claude-3-sonnet-20240229-v1:0", CHAT, {"temperature": 0, "top_p": 0.5, "stop": ["x"]}),
    ("moonshot", "kimi-k2-0905-preview", CHAT, {"temperature": 0}),
    ("groq", "llama-3.3-70b-versatile", CHAT, {"temperature": 0, "seed": 7}),
]


@pytest.mark.parametrize(("provider", "model", "endpoint", "fields"), TAKEN)
def test_what_a_model_takes_is_no_loss(provider: str, model: str, endpoint: str, fields: dict[str, Any]) -> None:
    assert at(provider, model, endpoint).losses(fields) == ()


@pytest.mark.parametrize("model", ["gpt-5", "gpt-5-nano", "gpt-5.6-sol", "o1", "o3-mini", "o4-mini", "gpt-6-luna"])
@pytest.mark.parametrize("provider", ["openai", "azure", "other"])
def test_the_bound_has_its_newer_name_where_the_older_one_is_refused(provider: str, model: str) -> None:
    assert sent(at(provider, model), max_tokens=120) == {"messages": ASKED, "max_completion_tokens": 120}


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "qwen3", "openai/gpt-oss-120b"])
def test_the_bound_keeps_its_name_elsewhere(model: str) -> None:
    assert sent(at("openai", model), max_tokens=120) == {"messages": ASKED, "max_tokens": 120}


@pytest.mark.parametrize(("provider", "model"), [("openai", "gpt-5"), ("openai", "gpt-4o"), ("local", "qwen3")])
def test_a_bound_of_extra_stands_in_place_of_ours(provider: str, model: str) -> None:
    found = sent(at(provider, model), max_tokens=512, max_completion_tokens=4096)
    assert found == {"messages": ASKED, "max_completion_tokens": 4096}


BOUNDS = [
    # provider, model, asked at, the name in `extra`, the name that is sent
    ("openai", "gpt-4o", CHAT, "max_output_tokens", "max_tokens"),
    ("openai", "gpt-5", CHAT, "max_output_tokens", "max_completion_tokens"),
    ("openai", "gpt-5-pro", CHAT, "max_output_tokens", "max_output_tokens"),
    ("openai", "gpt-5-pro", CHAT, "max_completion_tokens", "max_output_tokens"),
    ("openai", "gpt-4.1", RESPONSES, "max_completion_tokens", "max_output_tokens"),
    ("azure", "our-deployment", RESPONSES, "max_completion_tokens", "max_output_tokens"),
    ("other", "qwen3-32b", RESPONSES, "max_completion_tokens", "max_output_tokens"),
    ("local", "qwen3", RESPONSES, "max_completion_tokens", "max_output_tokens"),
    ("local", "qwen3", CHAT, "max_output_tokens", "max_tokens"),
    ("mistral", "mistral-small-latest", CHAT, "max_completion_tokens", "max_tokens"),
    ("deepseek", "deepseek-chat", CHAT, "max_completion_tokens", "max_tokens"),
    ("anthropic", "claude-haiku-4-5", CHAT, "max_output_tokens", "max_tokens"),
]


@pytest.mark.parametrize(("provider", "model", "endpoint", "field", "name"), BOUNDS)
def test_a_bound_of_extra_has_a_name_that_bounds_there(
    provider: str, model: str, endpoint: str, field: str, name: str
) -> None:
    ours, asked = ("max_output_tokens", "input") if endpoint == RESPONSES else ("max_tokens", "messages")
    dialect = at(provider, model, endpoint)
    body = {"model": model, asked: ASKED, ours: 512, field: 4096}
    line = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    written = json.loads(dialect.line(json.dumps(line).encode()))["body"]
    assert {key: value for key, value in written.items() if key.startswith("max_")} == {name: 4096}
    assert dialect.losses({ours: 512, field: 4096}) == ()
    task = Task(id="a", prompt="{{ text }}", model="a", extra={field: 4096}, endpoint=endpoint[4:].split("/")[0])
    assert most_tokens(task, 512) == 4096, "the bound that is reserved is the bound that is sent"


def test_a_bound_that_says_nothing_leaves_ours() -> None:
    for provider, model in (("openai", "gpt-4o"), ("local", "qwen3")):
        assert sent(at(provider, model), max_tokens=512, max_completion_tokens=None)["max_tokens"] == 512


@pytest.mark.parametrize("field", ["structured_outputs", "grammar", "json_schema", "regex", "ebnf"])
def test_a_grammar_of_extra_stands_in_place_of_the_schema(field: str) -> None:
    grammar = {field: "x"}
    assert sent(at("local", "qwen3"), response_format=format_of(SCHEMA), **grammar) == {"messages": ASKED, **grammar}
    asked = {"text": {"format": format_of(SCHEMA), "verbosity": "low"}, **grammar}
    assert at("local", "qwen3", RESPONSES).body(asked) == {"text": {"verbosity": "low"}, **grammar}
    assert at("local", "qwen3", RESPONSES).body({"text": {"format": {}}, **grammar}) == grammar


def test_mistral_has_its_own_name_for_the_seed() -> None:
    assert sent(at("mistral", "mistral-small-latest"), seed=7) == {"messages": ASKED, "random_seed": 7}


@pytest.mark.parametrize(("model", "most"), [("claude-haiku-4-5", 64_000), ("claude-3-haiku-20240307", 4_096)])
def test_a_bound_above_the_most_of_a_model_is_lowered_to_it(model: str, most: int) -> None:
    assert sent(at("anthropic", model), max_tokens=100_000)["max_tokens"] == most


@pytest.mark.parametrize(
    ("model", "most"),
    [("gpt-4o-mini", 16_384), ("gpt-4.1", 32_768), ("gpt-4-turbo", 4_096), ("gpt-3.5-turbo", 4_096), ("gpt-4", 8_192),
     ("o1-mini", 65_536), ("o3", 100_000), ("gpt-5-nano", 128_000), ("chatgpt-4o-latest", 16_384)],
)  # fmt: skip
def test_a_bound_above_the_most_of_an_openai_model_is_lowered_to_it(model: str, most: int) -> None:
    for endpoint in (CHAT, RESPONSES):
        for name in ("max_tokens", "max_completion_tokens") if endpoint == CHAT else ("max_output_tokens",):
            [bound] = at("openai", model, endpoint).body({name: 10**6}).values()
            assert bound == most
            assert at("openai", model, endpoint).body({name: 99}) in ({name: 99}, {"max_completion_tokens": 99})
    assert at("azure", "our-deployment", CHAT).body({"max_tokens": 10**6}) == {"max_tokens": 10**6}


def test_the_responses_api_is_asked_in_its_own_names() -> None:
    asked = {
        "max_completion_tokens": 70,
        "reasoning_effort": "low",
        "verbosity": "low",
        "text": {"format": {"type": "x"}},
    }
    assert at("openai", "gpt-5-nano", RESPONSES).body(asked) == {
        "max_output_tokens": 70,
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low", "format": {"type": "x"}},
    }


def test_every_model_that_its_sdk_knows_only_there_is_asked_at_responses() -> None:
    names = {name for part in get_args(AllModels) for name in _names(part)} - set(_names(ChatModel))
    assert {"o3-pro", "gpt-5.6-cyber"} <= names
    assert {at("openai", name, CHAT).endpoint for name in names} == {RESPONSES}


def _names(literal: Any) -> list[str]:
    return [name for one in get_args(literal) for name in ([one] if isinstance(one, str) else _names(one))]


def test_the_responses_api_has_a_least_bound() -> None:
    dialect = at("openai", "gpt-4o", RESPONSES)
    assert dialect.body({"input": ASKED, "max_output_tokens": 5})["max_output_tokens"] == 16
    assert at("local", "qwen3", RESPONSES).body({"max_output_tokens": 5}) == {"max_output_tokens": 5}


@pytest.mark.parametrize(
    "model", ["gpt-5-pro", "o3-pro", "o1-pro", "gpt-5-codex", "gpt-5.1-codex-max", "gpt-5.4-pro"]
)
def test_a_model_that_is_only_in_the_responses_api_is_asked_there(model: str) -> None:
    dialect = at("openai", model)
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "x", "messages": ASKED}}
    line["body"] |= {"max_tokens": 5, "response_format": format_of(SCHEMA)}  # type: ignore[operator]
    written = json.loads(dialect.line(json.dumps(line).encode()))
    assert (dialect.endpoint, written["url"]) == (RESPONSES, RESPONSES)
    body = written["body"]
    assert body["input"] == ASKED
    assert body["max_output_tokens"] == 16
    assert body["store"] is False
    assert body["text"]["format"]["name"] == "term"
    assert body["text"]["format"]["schema"]["additionalProperties"] is False
    assert not {"messages", "max_tokens", "max_completion_tokens", "response_format"} & body.keys()


def test_pictures_go_along_to_the_responses_api() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:x"}}, {"type": "text", "text": "What is it?"}]
    found = at("openai", "o3-pro").body({"messages": [{"role": "user", "content": parts}]})
    assert found["input"][0]["content"] == [
        {"type": "input_image", "image_url": "data:x"},
        {"type": "input_text", "text": "What is it?"},
    ]


@pytest.mark.parametrize("model", ["o1-mini", "o1-preview-2024-09-12"])
def test_what_the_system_says_goes_before_the_question_where_there_is_no_such_role(model: str) -> None:
    found = at("openai", model).body({"messages": [{"role": "system", "content": "Be brief."}, *ASKED]})
    assert found["messages"] == [{"role": "user", "content": "Be brief.\n\nWhen does it end?"}]


STRICT = [("openai", "gpt-4o"), ("openai", "gpt-5-nano"), ("azure", "gpt-4.1"), ("other", "gpt-4o-mini")]


@pytest.mark.parametrize(("provider", "model"), [*STRICT, ("groq", "openai/gpt-oss-120b")])
def test_a_schema_is_closed_and_all_its_properties_are_required(provider: str, model: str) -> None:
    schema = {**SCHEMA, "required": ["end_date"]}
    asked = sent(at(provider, model), response_format=format_of(schema))["response_format"]["json_schema"]
    assert asked["strict"] is True
    assert asked["schema"] == {
        "type": "object",
        "properties": {"end_date": {"type": "string"}, "renewable": {"type": ["boolean", "null"]}},
        "required": ["end_date", "renewable"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(("provider", "model"), STRICT)
def test_a_schema_without_a_strict_form_is_shown_and_not_enforced(provider: str, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"by_year": {"type": "object", "additionalProperties": {"type": "number"}}},
    }
    asked = sent(at(provider, model), response_format=format_of(schema))["response_format"]["json_schema"]
    assert (asked["strict"], asked["schema"]) == (False, schema)


PROMPTED = [
    ("openai", "gpt-4-turbo", {"type": "json_object"}),
    ("openai", "gpt-3.5-turbo", {"type": "json_object"}),
    ("openai", "gpt-4", None),
    ("openai", "o1-mini", None),
    ("groq", "llama-3.3-70b-versatile", {"type": "json_object"}),
    ("groq", "qwen/qwen3-32b", {"type": "json_object"}),
    ("deepseek", "deepseek-chat", {"type": "json_object"}),
    ("anthropic", "claude-3-5-haiku-20241022", None),
    ("anthropic", "claude-sonnet-4-20250514", None),
    ("anthropic", "claude-opus-4-0", None),
]


@pytest.mark.parametrize(("provider", "model", "form"), PROMPTED)
def test_a_schema_that_a_model_does_not_take_is_asked_for_in_the_prompt(
    provider: str, model: str, form: dict[str, str] | None
) -> None:
    found = sent(at(provider, model), response_format=format_of(SCHEMA))
    assert found.get("response_format") == form
    said = found["messages"][-1]["content"]
    assert said.startswith("When does it end?")
    assert "JSON" in said
    assert json.dumps(SCHEMA) in said


@pytest.mark.parametrize("schema", [{"type": "array", "items": {"type": "string"}}, {"anyOf": [SCHEMA, SCHEMA]}])
def test_a_schema_of_no_object_is_asked_for_in_the_prompt(schema: Any) -> None:
    found = sent(at("openai", "gpt-4o"), response_format=format_of(schema))
    assert "response_format" not in found
    assert json.dumps(schema) in found["messages"][-1]["content"]


@pytest.mark.parametrize(
    "property_",
    [
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object"},
    ],
)
def test_a_schema_that_anthropic_does_not_take_is_asked_for_in_the_prompt(property_: Any) -> None:
    schema = {"type": "object", "properties": {"a": property_}}
    found = sent(at("anthropic", "claude-haiku-4-5"), response_format=format_of(schema))
    assert "response_format" not in found
    assert json.dumps(schema) in found["messages"][-1]["content"]


def test_a_server_that_takes_no_schema_is_asked_as_it_can_be() -> None:
    for told in (
        Recipient("local", Structured.JSON_OBJECT),
        Recipient("local", None, (OwnRule(structured=Structured.JSON_OBJECT),)),
    ):
        found = sent(dialect_of(told, "qwen3", CHAT), response_format=format_of(SCHEMA))
        assert found["response_format"] == {"type": "json_object", "schema": SCHEMA}
        assert json.dumps(SCHEMA) in found["messages"][-1]["content"]
    learned = sent(at("local", "qwen3", refused=frozenset({"response_format"})), response_format=format_of(SCHEMA))
    assert learned == found
    none = at("local", "qwen3", refused=frozenset({"response_format", "response_format.json_object"}))
    assert "response_format" not in sent(none, response_format=format_of(SCHEMA))


def test_what_was_refused_is_said_in_another_way_or_named() -> None:
    renamed = at("other", "house-model", refused=frozenset({"max_tokens"}))
    assert sent(renamed, max_tokens=9) == {"messages": ASKED, "max_completion_tokens": 9}
    [loss] = at("other", "house-model", refused=frozenset({"seed"})).losses({"seed": 1})
    assert (loss.field, loss.reason) == ("seed", "house-model has refused seed")


def test_rules_of_orch_toml_hold_beside_ours() -> None:
    rules = (
        OwnRule("house-*", like="gpt-5-nano"),
        OwnRule("other", field="seed", rename="random_seed"),
        OwnRule("other", field="top_p", refuse=True),
        OwnRule("other", field="max_tokens", at_most=100),
        OwnRule("other", field="temperature", at_most=1),
    )
    recipient = Recipient("azure", None, rules)
    assert sent(dialect_of(recipient, "house-4", CHAT), max_tokens=9) == {
        "messages": ASKED,
        "max_completion_tokens": 9,
    }
    [loss] = dialect_of(recipient, "house-4", CHAT).losses({"temperature": 0})
    assert loss.reason == "house-4 takes no temperature"
    other = dialect_of(recipient, "other", CHAT)
    assert sent(other, seed=7, max_tokens=500) == {"messages": ASKED, "random_seed": 7, "max_tokens": 100}
    assert [loss.field for loss in other.losses({"top_p": 0.5, "temperature": 2})] == ["top_p", "temperature"]
    moved = dialect_of(Recipient("azure", None, (OwnRule(endpoint=RESPONSES),)), "any", CHAT)
    assert moved.endpoint == RESPONSES


def test_a_line_that_needs_no_change_is_the_very_same() -> None:
    line = b'{"custom_id": "a", "method":"POST","url":"/v1/chat/completions",'
    line += b'"body":{"model":"m","messages":[], "x": 1e3}}'
    assert at("local", "m").line(line) is line
    assert at("openai", "m").line(line) is line


def test_a_line_of_a_persons_own_keeps_its_values() -> None:
    body = {
        "model": "gpt-5",
        "messages": ASKED,
        "max_tokens": 5,
        "temperature": 0,
        "response_format": format_of(SCHEMA),
    }
    line = json.dumps({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}).encode()
    found = json.loads(at("openai", "gpt-5").line(line, is_ready=True))["body"]
    assert found.pop("max_completion_tokens") == body.pop("max_tokens")
    assert found == body


def test_never_dropped_is_what_bounds_the_cost_or_makes_the_answer() -> None:
    own = (OwnRule(field="max_tokens", refuse=True), OwnRule(field="store", refuse=True))
    dialect = dialect_of(Recipient("other", None, own), "m", CHAT)
    body = dialect.body({"max_tokens": 9, "store": False}, drop=True)
    assert body == {"max_tokens": 9, "store": False}
    assert not any(loss.may_be_dropped for loss in dialect.losses(body))


def test_models_are_described() -> None:
    said = describe(Recipient("openai"), "gpt-5-nano")
    assert said == "takes no temperature, top_p, stop, logprobs; max_tokens is sent as max_completion_tokens"
    assert describe(Recipient("openai"), "gpt-4o-mini") is None
    said = describe(Recipient("openai"), "text-embedding-ada-002")
    asked = "text-embedding-ada-002 is for embeddings, and cannot be asked at /v1/chat/completions"
    assert said == f"{asked}; takes no dimensions"
    assert describe(Recipient("groq"), "llama-3.3-70b") == "takes no logprobs; schemas are sent in the prompt"


def test_addresses_tell_their_provider() -> None:
    assert provider_at("https://api.mistral.ai/v1") == "mistral"
    assert provider_at("https://acme.openai.azure.com/openai/v1/") == "azure"
    assert provider_at("http://127.0.0.1:4000/v1") == "other"
    assert provider_at("http://127.0.0.1:4000/v1", "x-ai") == "xai"
    assert priced_as("https://api.x.ai/v1") == "x-ai"
    assert priced_as("https://api.mistral.ai/v1") == "mistral"
    assert priced_as("http://127.0.0.1:4000/v1") is None


# --- strict schemas

_LEAVES = st.sampled_from(
    [
        {"type": "string", "maxLength": 3},
        {"type": "integer", "minimum": 0},
        {"type": "boolean"},
        {"type": ["number", "null"]},
        {"enum": ["a", "b"]},
        {"const": 3},
        {"type": "string", "format": "uri"},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
    ]
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, required: {
            "type": "object",
            "properties": properties,
            "required": sorted(name for name in properties if name in required),
        },
        st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
        st.sets(st.sampled_from("abcd")),
    )


_SCHEMAS = _objects(
    st.recursive(
        _LEAVES,
        lambda inner: _objects(inner) | st.builds(lambda items: {"type": "array", "items": items}, inner),
        max_leaves=6,
    )
)


def _closed(schema: Any) -> bool:
    """Whether every object in a schema is closed and requires all its properties, and nothing is refused."""
    if isinstance(schema, list):
        return all(map(_closed, schema))
    if not isinstance(schema, dict):
        return True
    if "properties" in schema and (
        schema.get("additionalProperties") is not False or sorted(schema["required"]) != sorted(schema["properties"])
    ):
        return False
    if {"maxLength", "oneOf", "default"} & schema.keys() or schema.get("format") == "uri":
        return False
    inner = [value for name, value in schema.items() if name not in ("properties", "enum", "required")]
    return all(map(_closed, [*inner, *schema.get("properties", {}).values()]))


@given(_SCHEMAS)
def test_a_strict_schema_is_closed_throughout(schema: Any) -> None:
    strict = strict_schema(schema)
    assert strict is not None
    Draft202012Validator.check_schema(strict)
    assert _closed(strict)


def _example(schema: Any) -> Any:
    """Some value that fits a schema of those above, with all its properties."""
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return _example(schema[name][0])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"] if isinstance(schema["type"], str) else schema["type"][0]
    match kind:
        case "object":
            return {name: _example(inner) for name, inner in schema["properties"].items()}
        case "array":
            return [_example(schema["items"])]
    return {"string": "a", "integer": 1, "boolean": True, "number": 1.5, "null": None}[kind]


@given(_SCHEMAS)
def test_a_full_answer_to_the_strict_schema_fits_the_users(schema: Any) -> None:
    strict = strict_schema(schema)
    assert strict is not None
    answer = _example(strict)
    Draft202012Validator(schema).validate(answer)
    Draft202012Validator(strict).validate(_example(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "properties": {"a": True}},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True},
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]},
        {"type": "object", "properties": {"a": {"$ref": "https://x/y"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "string"}}},
        {"type": "array", "items": {"type": "string"}},
        {
            "allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"required": ["a"]}],
            "type": "object",
        },
    ],
)
def test_what_cannot_be_said_strictly_has_no_strict_form(schema: Any) -> None:
    assert strict_schema(schema) is None


def test_definitions_are_closed_and_optional_references_allow_null() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": "#/$defs/Contract",
        "$defs": {
            "Contract": {
                "type": "object",
                "properties": {
                    "party": {"$ref": "#/$defs/Party", "description": "who"},
                    "other": {"$ref": "#/$defs/Party"},
                },
                "required": ["party"],
            },
            "Party": {
                "type": "object",
                "properties": {"name": {"type": "string", "default": ""}},
                "required": ["name"],
            },
        },
    }
    strict = strict_schema(schema)
    assert strict is not None
    assert strict["properties"]["party"] == {"anyOf": [{"$ref": "#/$defs/Party"}], "description": "who"}
    assert strict["properties"]["other"] == {"anyOf": [{"$ref": "#/$defs/Party"}, {"type": "null"}]}
    assert strict["$defs"]["Party"]["additionalProperties"] is False
    assert strict["$defs"]["Party"]["properties"]["name"] == {"type": "string"}


def test_a_schema_that_is_too_deep_or_too_large_has_no_strict_form() -> None:
    deep: Any = {"type": "string"}
    for _ in range(12):
        deep = {"type": "object", "properties": {"a": deep}}
    assert strict_schema(deep) is None
    wide = {"type": "object", "properties": {"a": {"enum": [str(number) for number in range(1001)]}}}
    assert strict_schema(wide) is None
    long = {"type": "object", "properties": {"a": {"enum": [f"{number:060}" for number in range(251)]}}}
    assert strict_schema(long) is None


def test_keywords_that_providers_do_not_know_are_left_out() -> None:
    part = {"type": "string", "x-unit": "kg", "format": "regex", "pattern": "^(?=a)", "contentEncoding": "base64"}
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"], "x-order": ["a"]}
    for provider, model in (("openai", "gpt-4o"), ("anthropic", "claude-haiku-4-5")):
        asked = sent(at(provider, model), response_format=format_of(schema))["response_format"]["json_schema"]
        assert asked["schema"] == {
            **{name: value for name, value in schema.items() if name != "x-order"},
            "additionalProperties": False,
            "properties": {"a": {"type": "string", "description": "(format: regex, pattern: ^(?=a))"}},
        }


@pytest.mark.parametrize("inner", [
    {"type": "object", "properties": {f"p{number}": {"type": ["string", "null"]} for number in range(17)}},
    {"type": "object", "properties": {"a": {"description": "anything"}}},
], ids=["unions", "no type"])  # fmt: skip
def test_a_schema_that_claude_would_refuse_is_asked_for_in_the_prompt(inner: Any) -> None:
    schema = {**inner, "required": [*inner["properties"]]}
    found = sent(at("anthropic", "claude-haiku-4-5"), response_format=format_of(schema))
    assert "response_format" not in found
    assert "JSON Schema" in found["messages"][0]["content"]
