"""Translates chat completions to Gemini's requests. Pure.

Sources: google-genai 3.6.1 (types.py, batches.py), recorded requests, Gemini's page on OpenAI compatibility.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.backends.chat_rows import NO_EFFECT, check_counterparts
from orchestrator.backends.message_parts import (
    NO_COUNTERPART,
    CallPart,
    DocumentPart,
    MessagePart,
    PicturePart,
    ResultPart,
    SoundPart,
    TextPart,
    data_in,
    read_messages,
    texts,
)
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.families import plain_name
from orchestrator.policy.dialect.openapi_schemas import openapi_schema

_CONFIG = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "logprobs": "responseLogprobs",
    "top_logprobs": "logprobs",
}
_OWN = ("safetySettings", "cachedContent")
"""Gemini's own fields, which are sent unchanged."""
_IN_A_CACHE = frozenset({"systemInstruction", "tools", "toolConfig"})
"""Fields that a request must not have if it uses an explicit cache."""
KNOWN = NO_EFFECT.union(
    {*_CONFIG, *_OWN, "messages", "max_tokens", "max_completion_tokens", "stop", "n", "response_format", "tools",
     "tool_choice", "reasoning_effort", "stream", "service_tier", "parallel_tool_calls"}
)  # fmt: skip
_BUDGETS = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
_LEVELS = frozenset({"minimal", "low", "medium", "high"})
_ROLES = {"user": "user", "assistant": "model"}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
Json = dict[str, Any]


def translate(body: Mapping[str, Any]) -> Json:
    """Return a request of `generateContent`. Raises InputError for a field without a counterpart."""
    check_counterparts(body, KNOWN, NO_COUNTERPART)
    if body.get("stream"):
        raise InputError("a batch is not streamed", field="stream")
    if body.get("n") not in (None, 1):
        raise InputError("only one candidate is asked for", field="n")
    system, contents = _contents(body.get("messages"))
    request: Json = {"contents": contents}
    if system:
        request["systemInstruction"] = {"parts": system}
    if config := _config(body):
        request["generationConfig"] = config
    request |= _tools(body)
    if body.get("cachedContent") is not None and not request.keys().isdisjoint(_IN_A_CACHE):
        # 567-labs/instructor#2580, langchain-ai/langchain-google#978: refused with 400
        raise InputError("the cache has the system prompt and the tools, not the request", field="cachedContent")
    return request | {name: body[name] for name in _OWN if body.get(name) is not None}


def _config(body: Mapping[str, Any]) -> Json:
    config = {theirs: body[ours] for ours, theirs in _CONFIG.items() if body.get(ours) is not None}
    bound = body.get("max_completion_tokens", body.get("max_tokens"))
    if bound is not None:
        config["maxOutputTokens"] = bound
    stop = body.get("stop")
    if stop:
        config["stopSequences"] = [stop] if isinstance(stop, str) else stop
    config |= _format(body.get("response_format"))
    effort = body.get("reasoning_effort")
    if effort is not None:
        config["thinkingConfig"] = _thinking(str(effort), plain_name(str(body.get("model"))))
    return config


def _thinking(effort: str, model: str) -> Json:
    if model.startswith("gemini-2"):
        if effort not in _BUDGETS:
            raise InputError(f"{effort} {NO_COUNTERPART}", field="reasoning_effort")
        return {"thinkingBudget": _BUDGETS[effort]}
    if effort not in _LEVELS:
        raise InputError(f"{effort} {NO_COUNTERPART}", field="reasoning_effort")
    return {"thinkingLevel": effort}


def _format(asked: Any) -> Json:
    match asked:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"responseMimeType": "application/json"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            fit = openapi_schema(schema)
            asked_for = {"responseJsonSchema": schema} if fit is None else {"responseSchema": fit}
            return {"responseMimeType": "application/json", **asked_for}
    raise InputError(NO_COUNTERPART, field="response_format")


def _tools(body: Mapping[str, Any]) -> Json:
    declared = [_declaration(tool) for tool in body.get("tools") or ()]
    found: Json = {"tools": [{"functionDeclarations": declared}]} if declared else {}
    match body.get("tool_choice"):
        case None:
            return found
        case str(mode) if mode in _MODES:
            config: Json = {"mode": _MODES[mode]}
        case {"type": "function", "function": {"name": str(name)}}:
            config = {"mode": "ANY", "allowedFunctionNames": [name]}
        case _:
            raise InputError(NO_COUNTERPART, field="tool_choice")
    return found | {"toolConfig": {"functionCallingConfig": config}}


def _declaration(tool: Any) -> Json:
    match tool:
        case {"type": "function", "function": {"name": str(name), **more}}:
            known = {"description": more.get("description"), "parametersJsonSchema": more.get("parameters")}
            return {"name": name} | {key: value for key, value in known.items() if value is not None}
    raise InputError("only functions have a counterpart", field="tools")


def _contents(messages: Any) -> tuple[list[Json], list[Json]]:
    system, turns = read_messages(messages, {})
    called = dict[str, str]()
    said = [{"role": _ROLES[turn.role], "parts": [_part(one, called) for one in turn.parts]} for turn in turns]
    return [_part(one, called) for one in system], said


def _part(part: MessagePart, called: dict[str, str]) -> Json:
    """Return a message part as Gemini's part. `called` maps ids of earlier tool calls to function names."""
    match part:
        case TextPart():
            return {"text": part.text}
        case PicturePart() | DocumentPart():
            found = data_in(part.url)
            if found is None:
                raise InputError("Gemini takes pictures and files only as data: URLs", field=part.where)
            return {"inlineData": {"mimeType": found[0], "data": found[1]}}
        case SoundPart():
            return {"inlineData": {"mimeType": f"audio/{part.format}", "data": part.data}}
        case CallPart():
            called[part.id] = part.name
            match part.extra:
                case {"google": {"thought_signature": str(signature)}}:
                    signed = {"thoughtSignature": signature}
                case _:
                    signed = {}
            return {"functionCall": {"name": part.name, "args": part.arguments}, **signed}
        case ResultPart():
            if part.call_id not in called:
                raise InputError("answers a call that no message has", field=f"{part.where}.tool_call_id")
            answer = {"result": "".join(texts(part.parts))}
            return {"functionResponse": {"name": called[part.call_id], "response": answer}}
    raise InputError(NO_COUNTERPART, field=part.where)
