"""Chat completions as Gemini's requests. Pure.

Sources: google-genai 3.6.1 (types.py, batches.py), recorded requests, Gemini's page on OpenAI compatibility.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.backends.chat_rows import DATA_URL, parts_of
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.families import plain_name
from orchestrator.policy.dialect.openapi_schemas import openapi_schema

LEFT_OUT = frozenset(
    {"metadata", "store", "service_tier", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
     "prediction", "parallel_tool_calls"}
)  # fmt: skip
"""Fields that do not change the answer."""
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
"""Gemini's own fields, which go out as they are."""
TAKEN = frozenset(
    {*_CONFIG, *_OWN, "messages", "max_tokens", "max_completion_tokens", "stop", "n", "response_format", "tools",
     "tool_choice", "reasoning_effort", "stream"}
)  # fmt: skip
_BUDGETS = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
_LEVELS = frozenset({"minimal", "low", "medium", "high"})
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
Json = dict[str, Any]


def translate(body: Mapping[str, Any]) -> Json:
    """Return a request of `generateContent`. Raises InputError for a field without a counterpart."""
    for name, value in body.items():
        if name not in TAKEN and name not in LEFT_OUT and name != "model" and value is not None:
            raise InputError("has no counterpart", field=name)
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
            raise InputError(f"{effort} has no counterpart", field="reasoning_effort")
        return {"thinkingBudget": _BUDGETS[effort]}
    if effort not in _LEVELS:
        raise InputError(f"{effort} has no counterpart", field="reasoning_effort")
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
    raise InputError("has no counterpart", field="response_format")


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
            raise InputError("has no counterpart", field="tool_choice")
    return found | {"toolConfig": {"functionCallingConfig": config}}


def _declaration(tool: Any) -> Json:
    match tool:
        case {"type": "function", "function": {"name": str(name), **more}}:
            known = {"description": more.get("description"), "parametersJsonSchema": more.get("parameters")}
            return {"name": name} | {key: value for key, value in known.items() if value is not None}
    raise InputError("only functions have a counterpart", field="tools")


def _contents(messages: Any) -> tuple[list[Json], list[Json]]:
    """Return the parts of the system's instruction, and the turns of the conversation."""
    if not isinstance(messages, list) or not messages:
        raise InputError("must be a list of messages", field="messages")
    system: list[Json] = []
    turns: list[Json] = []
    called: dict[str, str] = {}
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise InputError("must be a message", field=where)
        role = message.get("role")
        if role in ("system", "developer"):
            system += _parts(message.get("content"), where)
            continue
        theirs = "model" if role == "assistant" else "user"
        parts = [*_of_message(message, role, called, where)]
        if turns and turns[-1]["role"] == theirs:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": theirs, "parts": parts})
    return system, turns


def _of_message(message: Json, role: Any, called: dict[str, str], where: str) -> Iterator[Json]:
    match role:
        case "user":
            yield from _parts(message.get("content"), where)
        case "assistant":
            yield from _parts(message.get("content"), where)
            for call in message.get("tool_calls") or ():
                yield _call(call, called, where)
        case "tool":
            name = called.get(str(message.get("tool_call_id")))
            if name is None:
                raise InputError("answers a call that no message has", field=f"{where}.tool_call_id")
            text = "".join(part.get("text", "") for part in _parts(message.get("content"), where))
            yield {"functionResponse": {"name": name, "response": {"result": text}}}
        case _:
            raise InputError(f"the role {role} has no counterpart", field=f"{where}.role")


def _call(call: Any, called: dict[str, str], where: str) -> Json:
    match call:
        case {"type": "function", "id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
            called[call_id] = name
            try:
                part: Json = {"functionCall": {"name": name, "args": json.loads(arguments or "{}")}}
            except ValueError:
                raise InputError("has arguments that are not JSON", field=f"{where}.tool_calls") from None
            match call:
                case {"extra_content": {"google": {"thought_signature": str(signature)}}}:
                    part["thoughtSignature"] = signature
            return part
    raise InputError("only calls of functions have a counterpart", field=f"{where}.tool_calls")


def _parts(content: Any, where: str) -> list[Json]:
    return [_part(part, place) for part, place in parts_of(content, where)]


def _part(part: Any, where: str) -> Json:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}} | {
            "type": "file",
            "file": {"file_data": str(url)},
        }:
            found = DATA_URL.match(url)
            if found is None:
                raise InputError("takes pictures and files only as data: URLs", field=where)
            return {"inlineData": {"mimeType": found[1], "data": url[found.end() :]}}
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return {"inlineData": {"mimeType": f"audio/{kind}", "data": data}}
    raise InputError("has no counterpart", field=where)
