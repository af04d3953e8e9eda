"""What OpenAI refuses at chat completions, responses and embeddings; Azure refuses the same.

Sources: platform.openai.com's guides (reasoning, structured outputs, latest model), the SDK's parameter types, the
threads and recorded answers that `docs/reference/emulator.md` lists. Nothing is known of names that are not OpenAI's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponsesParams

from tests.emulator.errors import Json
from tests.emulator.refusals import openai_models as models
from tests.emulator.refusals.refused import (
    Refused,
    first,
    out_of_range,
    refused,
    roles_of,
    text_of,
    unsupported,
    unsupported_value,
    wanted,
)
from tests.emulator.refusals.strict import openai_problem, root_problem

STREAMS = frozenset({"stream"})
CHAT_FIELDS = frozenset(ChatParams.__annotations__) | STREAMS
RESPONSES_FIELDS = frozenset(ResponsesParams.__annotations__) | STREAMS
EMBEDDINGS_FIELDS = frozenset(EmbeddingCreateParams.__annotations__)

ONLY_DEFAULT = "Only the default (1) value is supported."
NOT_ALLOWED_WITH = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
LOGPROBS = "message.output_text.logprobs"
MOVED = {"response_format": "text.format", "reasoning_effort": "reasoning.effort", "max_tokens": "max_output_tokens"}
NAME = re.compile(r"[a-zA-Z0-9_-]+")
MAX_NAME = 64
MIN_OUTPUT_TOKENS = 16


def chat(model: str, body: Json) -> Refused | None:
    """The first refusal of a chat completion."""
    return first(_chat(models.base_of(model), body, is_tuned=models.is_tuned(model)))


def _chat(model: str, body: Json, *, is_tuned: bool) -> Iterator[Refused | None]:
    yield _place_of_chat(model)
    unknown = next((name for name in body if name not in CHAT_FIELDS), None)
    yield refused(f"Unrecognized request argument supplied: {unknown}") if unknown else None
    yield _limits_of_chat(model, body)
    yield from _bounds(body)
    yield _cache(model, body)
    yield _search(model, body)
    yield from _reasoning_of_chat(model, body)
    yield _roles(model, body)
    yield _format(model, body.get("response_format"), "response_format", body.get("messages"), is_tuned=is_tuned)
    yield _functions(body.get("tools"))
    yield _tools_beside_reasoning(model, body)
    if body.get("web_search_options") is not None and "-search-" not in model:
        yield refused("Web search options not supported with this model.", "web_search_options")


def _cache(model: str, body: Json) -> Refused | None:
    if body.get("prompt_cache_options") is None or re.match(r"(chat)?gpt-[345]|o\d|codex", model) is None:
        return None
    if re.match(r"gpt-5\.[6-9]", model):
        return None
    message = "Unsupported parameter: 'prompt_cache_options' is not supported with this model."
    return refused(message, "prompt_cache_options", "unsupported_parameter")


def _tools_beside_reasoning(model: str, body: Json) -> Refused | None:
    effort, is_newer = body.get("reasoning_effort"), re.match(r"gpt-5\.[6-9]|gpt-6", model)
    if not body.get("tools") or effort == "none" or (effort is None and not is_newer):
        return None
    if not is_newer and not re.match(r"gpt-5\.[2-5](?!-chat)", model):
        return None
    words = f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions."
    return refused(
        f"{words} To use function tools, use /v1/responses or set reasoning_effort to 'none'.", "reasoning_effort"
    )


def _place_of_chat(model: str) -> Refused | None:
    if models.is_only_at_responses(model):
        message = "This model is only supported in v1/responses and not in v1/chat/completions."
        return refused(message, "model", status=404)
    if models.cannot_chat(model):
        message = (
            "This is not a chat model and thus not supported in the v1/chat/completions endpoint. "
            "Did you mean to use v1/completions?"
        )
        return refused(message, "model", status=404)
    return None


def _limits_of_chat(model: str, body: Json) -> Refused | None:
    old, new = body.get("max_tokens"), body.get("max_completion_tokens")
    if old is not None and new is not None:
        return refused(NOT_ALLOWED_WITH, code="invalid_parameter_combination")
    if old is not None and models.reasoning_of(model) is not None:
        message = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead."
        )
        return refused(message, "max_tokens", "unsupported_parameter")
    return first(_most(model, name, body.get(name)) for name in ("max_tokens", "max_completion_tokens"))


def _most(model: str, name: str, value: Any) -> Refused | None:
    most = models.most_tokens(model)
    if not isinstance(value, int):
        return None
    if most is not None and value > most:
        message = (
            f"{name} is too large: {value}. This model supports at most {most} completion tokens, "
            f"whereas you provided {value}."
        )
        return refused(message, name, "invalid_value")
    return out_of_range(name, value, 1)


def _bounds(body: Json) -> Iterator[Refused | None]:
    """What no model takes."""
    yield out_of_range("temperature", body.get("temperature"), 0.0, 2.0)
    yield out_of_range("top_p", body.get("top_p"), 0.0, 1.0)
    for name in ("presence_penalty", "frequency_penalty"):
        yield out_of_range(name, body.get(name), -2.0, 2.0)
    yield out_of_range("top_logprobs", body.get("top_logprobs"), 0, 20)
    if wanted(body, "top_logprobs") and "messages" in body and not body.get("logprobs"):
        message = "Invalid value for 'top_logprobs': only allowed when 'logprobs' is enabled."
        yield refused(message, "top_logprobs")
    stop = body.get("stop")
    if isinstance(stop, list) and len(stop) > 4:
        message = (
            "Invalid 'stop': array too long. Expected an array with maximum length 4, "
            f"but got an array with length {len(stop)} instead."
        )
        yield refused(message, "stop", "array_above_max_length")


def _reasoning_of_chat(model: str, body: Json) -> Iterator[Refused | None]:
    effort, reasoning = body.get("reasoning_effort"), models.reasoning_of(model)
    if reasoning is None:
        if effort is not None and models.is_known(model):
            yield refused("Unrecognized request argument supplied: reasoning_effort")
        return
    yield _effort("reasoning_effort", effort, reasoning)
    if wanted(body, "stop") and not models.takes_stop(model):
        yield unsupported("stop")
    if not reasoning.is_on(effort):
        return
    if body.get("logprobs") or wanted(body, "top_logprobs"):
        yield refused("You are not allowed to request logprobs from this model", status=403)
    for name, usual in (("temperature", 1), ("top_p", 1)):
        if wanted(body, name, usual):
            yield unsupported_value(name, body[name], ONLY_DEFAULT)
    for name, empty in (("presence_penalty", 0), ("frequency_penalty", 0), ("logit_bias", {})):
        yield unsupported(name) if wanted(body, name, empty) else None
    if wanted(body, "n", 1) and model.startswith("o1"):
        yield unsupported_value("n", body["n"], ONLY_DEFAULT)


def _search(model: str, body: Json) -> Refused | None:
    """A search model takes no sampling settings, whatever their values."""
    names = ("frequency_penalty", "presence_penalty", "temperature", "top_p")
    told = [name for name in names if body.get(name) is not None]
    if not told or "-search-preview" not in model:
        return None
    return refused(f"Model incompatible request argument{'s' * (len(told) > 1)} supplied: {', '.join(told)}")


def _effort(name: str, effort: Any, reasoning: models.Reasoning) -> Refused | None:
    if effort is None or effort in reasoning.efforts:
        return None
    if not reasoning.efforts:
        return unsupported(name)
    *some, last = (f"'{one}'" for one in reasoning.efforts)
    known = f"{', '.join(some)}, and {last}" if some else last
    return unsupported_value(name, effort, f"Supported values are: {known}.")


def _roles(model: str, body: Json) -> Refused | None:
    if models.takes_system(model):
        return None
    for number, role in enumerate(roles_of(body.get("messages"))):
        if role in ("system", "developer"):
            return unsupported_value(f"messages[{number}].role", role, "")
    return None


def _format(model: str, told: Any, param: str, messages: Any, *, is_tuned: bool) -> Refused | None:
    """A response format, at either endpoint."""
    kind = told.get("type") if isinstance(told, dict) else None
    if kind is None or not isinstance(told, dict):
        return None
    if not models.takes_format(model, kind):
        message = f"Invalid parameter: '{param}' of type '{kind}' is not supported with this model."
        if kind == "json_schema":
            message += (
                " Learn more about supported models at the Structured Outputs guide: "
                "https://platform.openai.com/docs/guides/structured-outputs"
            )
        return refused(message, param)
    if kind == "json_object":
        return _without_json(param, messages)
    if kind == "json_schema":
        inner = told.get("json_schema") if param == "response_format" else told
        return _schema(inner if isinstance(inner, dict) else {}, param, is_tuned=is_tuned)
    return None


def _without_json(param: str, messages: Any) -> Refused | None:
    if "json" in text_of(messages).lower():
        return None
    if param == "response_format":
        words = (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
        )
        return refused(words, "messages")
    words = "Response input messages must contain the word 'json' in some form to use 'text.format' of type"
    return refused(f"{words} 'json_object'.", "input")


def _schema(told: Json, param: str, *, is_tuned: bool) -> Refused | None:
    is_chat = param == "response_format"
    where = f"{param}.json_schema" if is_chat else param
    name = told.get("name")
    if name is None:
        return refused(f"Missing required parameter: '{where}.name'.", f"{where}.name", "missing_required_parameter")
    if not NAME.fullmatch(str(name)):
        message = (
            f"Invalid '{where}.name': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )
        return refused(message, f"{where}.name", "invalid_value")
    if len(name) > MAX_NAME:
        message = (
            f"Invalid '{where}.name': string too long. Expected a string with maximum length {MAX_NAME}, "
            f"but got a string with length {len(name)} instead."
        )
        return refused(message, f"{where}.name", "string_above_max_length")
    schema = told.get("schema")
    problem = root_problem(schema) or (openai_problem(schema, is_tuned=is_tuned) if told.get("strict") else None)
    if problem is None:
        return None
    message = f"Invalid schema for response_format '{name}': {problem}"
    return refused(message, param, None) if is_chat else refused(message, f"{param}.schema", "invalid_json_schema")


def _functions(tools: Any) -> Refused | None:
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        told = tool.get("function", tool) if isinstance(tool, dict) else {}
        problem = openai_problem(told.get("parameters") or {}) if told.get("strict") else None
        if problem is not None:
            message = f"Invalid schema for function '{told.get('name')}': {problem}"
            param = f"tools[{number}].function.parameters" if "function" in tool else f"tools[{number}].parameters"
            return refused(message, param, "invalid_function_parameters")
    return None


def responses(model: str, body: Json) -> Refused | None:
    """The first refusal of a request to the Responses API."""
    return first(_responses(models.base_of(model), body, is_tuned=models.is_tuned(model)))


def _responses(model: str, body: Json, *, is_tuned: bool) -> Iterator[Refused | None]:
    if models.is_only_at_chat(model) or models.cannot_chat(model):
        message = f"The requested model '{model}' cannot be used with the Responses API."
        yield refused(message, "model", "unsupported_model")
    yield _unknown_at_responses(body)
    limit = body.get("max_output_tokens")
    yield out_of_range("max_output_tokens", limit, MIN_OUTPUT_TOKENS)
    yield _most(model, "max_output_tokens", limit)
    yield from _bounds(body)
    yield _cache(model, body)
    yield from _reasoning_of_responses(model, body)
    text = body.get("text")
    asked = text.get("format") if isinstance(text, dict) else None
    yield _format(model, asked, "text.format", body.get("input"), is_tuned=is_tuned)
    yield _functions(body.get("tools"))


def _unknown_at_responses(body: Json) -> Refused | None:
    unknown = next((name for name in body if name not in RESPONSES_FIELDS), None)
    if unknown is None:
        return None
    if unknown in MOVED:
        message = (
            f"Unsupported parameter: '{unknown}'. In the Responses API, this parameter has moved to "
            f"'{MOVED[unknown]}'. Try again with the new parameter."
        )
        return refused(message, unknown, "unsupported_parameter")
    return refused(f"Unknown parameter: '{unknown}'.", unknown, "unknown_parameter")


def _reasoning_of_responses(model: str, body: Json) -> Iterator[Refused | None]:
    told, reasoning = body.get("reasoning"), models.reasoning_of(model)
    effort = told.get("effort") if isinstance(told, dict) else None
    if reasoning is None:
        if effort is not None and models.is_known(model):
            yield unsupported("reasoning.effort")
        return
    yield _effort("reasoning.effort", effort, reasoning)
    if not reasoning.is_on(effort):
        return
    for name in ("temperature", "top_p", "top_logprobs"):
        yield unsupported(name) if body.get(name) is not None else None
    if LOGPROBS in (body.get("include") or ()):
        yield refused("logprobs are not supported with reasoning models.", "include", "unsupported_parameter")


def embeddings(model: str, body: Json) -> Refused | None:
    """The first refusal of an embedding."""
    return first(_embeddings(model, body))


def _embeddings(model: str, body: Json) -> Iterator[Refused | None]:
    if models.is_known(model) and not models.is_embedding(model):
        yield refused("You are not allowed to generate embeddings from this model", status=403)
    unknown = next((name for name in body if name not in EMBEDDINGS_FIELDS), None)
    yield refused(f"Unrecognized request argument supplied: {unknown}") if unknown else None
    size = body.get("dimensions")
    if size is None:
        return
    if model.startswith("text-embedding-ada"):
        yield refused("This model does not support specifying dimensions.", "dimensions")
    most = models.most_dimensions(model)
    if most is not None and size > most:
        message = f"Invalid value for 'dimensions' = {size}. Must be less than or equal to {most}."
        yield refused(message, "dimensions")
    yield out_of_range("dimensions", size, 1)
