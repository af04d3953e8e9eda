"""Translates OpenAI's chat completions to Anthropic's Messages. Pure; `results` translates back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.backends.anthropic.dialect import LEFT_OUT, TRANSLATED
from orchestrator.backends.message_parts import (
    NO_COUNTERPART,
    CallPart,
    DocumentPart,
    LeftOut,
    MessagePart,
    PicturePart,
    ResultPart,
    TextPart,
    check_known,
    data_in,
    list_of,
    object_of,
    read_messages,
    text_of,
)
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.claude_rules import takes_sampling
from orchestrator.policy.dialect.closed_schemas import closed_schema
from orchestrator.policy.dialect.rules import NEUTRAL

Block = dict[str, Any]

_THEIRS = ("thinking", "cache_control")
"""Anthropic's own fields, sent unchanged. `top_k` is also sent unchanged if the model accepts it."""
_PDF = "application/pdf"
_EFFORTS = {"minimal": "low", **{effort: effort for effort in ("low", "medium", "high", "xhigh", "max")}}


def translate(body: Mapping[str, Any], max_tokens: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the Anthropic params for a chat completion's body, and the names of omitted fields.

    `max_tokens` applies to a body without a limit, because Anthropic requires the field. Raises InputError, which
    names the field, if a field that would change the answer has no counterpart.
    """
    given = {name: value for name, value in body.items() if value is not None}
    left_out: LeftOut = {}
    _check_fields(given, left_out)
    model = text_of(given.get("model"), "model")
    system, turns = read_messages(given.get("messages"), left_out)
    tools = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(list_of(given.get("tools", []), "tools"))]
    stop = given.get("stop", [])
    user = given.get("safety_identifier", given.get("user"))
    if given.get("user", user) != user:
        left_out["user"] = None
    effort = given.get("reasoning_effort")
    params = {
        "model": model,
        "max_tokens": given.get("max_completion_tokens", given.get("max_tokens", max_tokens)),
        "system": _content(system),
        "messages": [{"role": turn.role, "content": _content(turn.parts)} for turn in turns],
        "stop_sequences": [stop] if isinstance(stop, str) else list_of(stop, "stop"),
        **_sampling(given, model),
        "tools": tools,
        "tool_choice": _choice(given.get("tool_choice"), given.get("parallel_tool_calls"), bool(tools)),
        "output_config": _format(given.get("response_format", {"type": "text"})) | _effort(effort),
        "thinking": {"type": "disabled"} if effort == "none" else {},
        "metadata": {} if user is None else {"user_id": user},
        **{name: given[name] for name in _THEIRS if name in given},
    }
    return {name: value for name, value in params.items() if value not in ("", [], {})}, tuple(left_out)


def _check_fields(given: Mapping[str, Any], left_out: LeftOut) -> None:
    for name, value in given.items():
        if name not in TRANSLATED and name in NEUTRAL and value == NEUTRAL[name]:
            continue
        if name in LEFT_OUT:
            left_out[name] = None
        elif name not in TRANSLATED:
            raise InputError(NO_COUNTERPART, field=name)


def _content(parts: list[MessagePart]) -> str | list[Block]:
    """Drop empty texts, because Anthropic refuses them among other blocks."""
    blocks = [block for block in map(_block, parts) if block != {"type": "text", "text": ""}]
    if [block.keys() for block in blocks] == [{"type", "text"}]:
        return str(blocks[0]["text"])
    return blocks or ""


def _block(part: MessagePart) -> Block:
    match part:
        case TextPart():
            block: Block = {"type": "text", "text": part.text}
        case PicturePart():
            block = {"type": "image", "source": _source(part.url, f"{part.where}.image_url.url")}
        case DocumentPart():
            source = _source(part.url, f"{part.where}.file.file_data")
            if source.get("media_type", _PDF) != _PDF:
                raise InputError("must be a PDF", field=f"{part.where}.file.file_data")
            block = {"type": "document", "source": source} | ({} if part.name is None else {"title": part.name})
        case CallPart():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments}
        case ResultPart():
            return {"type": "tool_result", "tool_use_id": part.call_id, "content": _content(part.parts)}
        case _:
            raise InputError(NO_COUNTERPART, field=f"{part.where}.type")
    return block if part.cache_control is None else {**block, "cache_control": part.cache_control}


def _source(url: str, where: str) -> dict[str, str]:
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    found = data_in(url)
    if found is None:
        raise InputError("must be an http(s) address or a data: URL in base64", field=where)
    return {"type": "base64", "media_type": found[0], "data": found[1]}


def _tool(tool: Any, where: str) -> dict[str, Any]:
    tool = object_of(tool, where)
    if tool.get("type") != "function":
        raise InputError(NO_COUNTERPART, field=f"{where}.type")
    check_known(tool, where, "type function cache_control", {})
    function = object_of(tool.get("function"), f"{where}.function")
    check_known(function, f"{where}.function", "name description parameters strict", {})
    schema = function.get("parameters")
    schema = {"type": "object", "properties": {}} if schema is None else schema
    strict = function.get("strict") is True
    described = {
        "name": text_of(function.get("name"), f"{where}.function.name"),
        "description": function.get("description"),
        "input_schema": closed_schema(schema, f"{where}.function.parameters") if strict else schema,
        "strict": strict or None,
        "cache_control": tool.get("cache_control"),
    }
    return {name: value for name, value in described.items() if value is not None}


def _format(wanted: Any) -> dict[str, Any]:
    where = "response_format"
    wanted = object_of(wanted, where)
    kind = wanted.get("type")
    if kind not in ("text", "json_schema"):
        raise InputError(f"{NO_COUNTERPART}; ask for a json_schema", field=f"{where}.type")
    check_known(wanted, where, f"type {kind if kind == 'json_schema' else ''}", {})
    if kind == "text":
        return {}
    named = object_of(wanted.get("json_schema"), f"{where}.json_schema")
    # Anthropic's schemas are always strict, and need no name.
    check_known(named, f"{where}.json_schema", "name description schema strict", {})
    schema = closed_schema(named.get("schema"), f"{where}.json_schema.schema")
    if named.get("description") is not None:
        schema = {"description": named["description"], **schema}
    return {"format": {"type": "json_schema", "schema": schema}}


def _sampling(given: Mapping[str, Any], model: str) -> dict[str, Any]:
    found = {}
    for name in ("temperature", "top_p", "top_k"):
        value = given.get(name)
        if value is None or (value == 1 and name != "top_k"):
            continue  # 1 is the default, and newer models refuse even the default
        if not takes_sampling(model):
            raise InputError(f"{model} takes no sampling parameters", field=name)
        if name == "temperature" and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise InputError("goes from 0 to 1 there", field=name)
        found[name] = value
    return found


def _effort(effort: Any) -> dict[str, Any]:
    if effort is None or effort == "none":
        return {}
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise InputError(f"{effort!r} has no counterpart", field="reasoning_effort")
    return {"effort": _EFFORTS[effort]}


def _choice(choice: Any, parallel: Any, has_tools: bool) -> dict[str, Any]:
    found: dict[str, Any]
    match choice:
        case None | "auto":
            found = {"type": "auto"} if parallel is False else {}
        case "none":
            found = {"type": "none"}
        case "required":
            found = {"type": "any"}
        case {"type": "function", "function": {"name": str(name), **more}, **beside} if not more and not beside:
            found = {"type": "tool", "name": name}
        case _:
            raise InputError(NO_COUNTERPART, field="tool_choice")
    if not has_tools:
        if found.get("type") in ("any", "tool"):
            raise InputError("asks for a tool, but lists none", field="tool_choice")
        return {}
    if parallel is False and found["type"] != "none":
        found["disable_parallel_tool_use"] = True
    return found
