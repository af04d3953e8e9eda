"""OpenAI's chat completions as Anthropic's Messages. Pure; `results` translates back.

Fields without a counterpart are named, never dropped silently. A field that would change the answer is refused; a
field without effect on it (a label, a hint for OpenAI's cache) is left out and reported by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.backends.anthropic.dialect import LEFT_OUT, TRANSLATED
from orchestrator.backends.anthropic.schemas import fit_schema
from orchestrator.core import batch_api
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.claude_rules import takes_sampling
from orchestrator.policy.dialect.rules import NEUTRAL

Block = dict[str, Any]

_THEIRS = ("thinking", "cache_control")
"""Anthropic's own fields, which are passed unchanged; so is `top_k`, if the model takes it."""
_NO_COUNTERPART = "Anthropic's Messages have no counterpart"
_EFFORTS = {"minimal": "low", **{effort: effort for effort in ("low", "medium", "high", "xhigh", "max")}}


def translate(body: Mapping[str, Any], max_tokens: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the params of a chat completion's body, and the names of the fields left out.

    `max_tokens` is for a body without it, because Anthropic requires it. Raises InputError with the name of a field
    that would change the answer.
    """
    translation = _Translation()
    params = translation.params({name: value for name, value in body.items() if value is not None}, max_tokens)
    return params, tuple(translation.left_out)


class _Translation:
    """Translation of one body; `left_out` has the names of dropped fields, each once."""

    def __init__(self) -> None:
        self.left_out: dict[str, None] = {}

    def params(self, given: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
        self._check_fields(given)
        model = _text(given.get("model"), "model")
        system, messages = self._conversation(given.get("messages"))
        tools = [self._tool(tool, f"tools[{at}]") for at, tool in enumerate(_list(given.get("tools", []), "tools"))]
        stop = given.get("stop", [])
        user = given.get("safety_identifier", given.get("user"))
        if given.get("user", user) != user:
            self.left_out["user"] = None
        effort = given.get("reasoning_effort")
        wanted = self._format(given.get("response_format", {"type": "text"})) | _effort(effort)
        params = {
            "model": model,
            "max_tokens": given.get("max_completion_tokens", given.get("max_tokens", max_tokens)),
            "system": _content(system),
            "messages": messages,
            "stop_sequences": [stop] if isinstance(stop, str) else _list(stop, "stop"),
            **_sampling(given, model),
            "tools": tools,
            "tool_choice": _choice(given.get("tool_choice"), given.get("parallel_tool_calls"), bool(tools)),
            "output_config": wanted,
            "thinking": {"type": "disabled"} if effort == "none" else {},
            "metadata": {} if user is None else {"user_id": user},
            **{name: given[name] for name in _THEIRS if name in given},
        }
        return {name: value for name, value in params.items() if value not in ("", [], {})}

    def _check_fields(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            if name not in TRANSLATED and name in NEUTRAL and value == NEUTRAL[name]:
                continue
            if name in LEFT_OUT:
                self.left_out[name] = None
            elif name not in TRANSLATED:
                raise InputError(_NO_COUNTERPART, field=name)

    def _check_known(self, value: Mapping[str, Any], where: str, known: str, left_out: str = "") -> None:
        """Refuse unknown names; `known` and `left_out` are separated by spaces. Empty values are dropped silently."""
        translated, dropped = known.split(), left_out.split()
        for name, inner in value.items():
            if name in dropped and inner:
                self.left_out[re.sub(r"\[\d+\]", "[]", f"{where}.{name}")] = None
            elif inner is not None and name not in translated and name not in dropped:
                raise InputError(_NO_COUNTERPART, field=f"{where}.{name}")

    def _conversation(self, messages: Any) -> tuple[list[Block], list[dict[str, Any]]]:
        """Return the system prompt's blocks, and the turns: consecutive messages of a role are one turn."""
        system: list[Block] = []
        turns: list[tuple[str, list[Block]]] = []
        for at, message in enumerate(_list(messages, "messages")):
            where = f"messages[{at}]"
            role, blocks = self._message(_object(message, where), where)
            if role == "system":
                system += blocks
                if turns:
                    self.left_out["messages[].role: the place of a later system message"] = None
            elif turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, list(blocks)))
        if not turns:
            raise InputError("must hold more than a system prompt", field="messages")
        return system, [{"role": role, "content": _content(blocks)} for role, blocks in turns]

    def _message(self, message: Mapping[str, Any], where: str) -> tuple[str, list[Block]]:
        content = message.get("content")
        match message.get("role"):
            case "system" | "developer" | "user" as role:
                self._check_known(message, where, "role content", "name")
                return "user" if role == "user" else "system", self._parts(content, f"{where}.content")
            case "assistant":
                return "assistant", self._assistant(message, where)
            case "tool":
                self._check_known(message, where, "role content tool_call_id", "name")
                result = {
                    "type": "tool_result",
                    "tool_use_id": _text(message.get("tool_call_id"), f"{where}.tool_call_id"),
                    "content": _content(self._parts(content, f"{where}.content")),
                }
                return "user", [result]
            case role:
                raise InputError(f"the role {role!r} has no counterpart", field=f"{where}.role")

    def _assistant(self, message: Mapping[str, Any], where: str) -> list[Block]:
        # Anthropic takes a model's thoughts back only with a signature, for which OpenAI's shape has no field.
        no_place = "name annotations reasoning_content reasoning other_content"
        self._check_known(message, where, "role content refusal tool_calls", no_place)
        blocks = []
        for name in ("content", "refusal"):
            if message.get(name) is not None:
                blocks += self._parts(message[name], f"{where}.{name}")
        calls = message.get("tool_calls")
        for at, call in enumerate([] if calls is None else _list(calls, f"{where}.tool_calls")):
            blocks.append(self._call(call, f"{where}.tool_calls[{at}]"))
        if not blocks:
            raise InputError("is missing", field=f"{where}.content")
        return blocks

    def _call(self, call: Any, where: str) -> Block:
        call = _object(call, where)
        if call.get("type") != "function":
            raise InputError(_NO_COUNTERPART, field=f"{where}.type")
        self._check_known(call, where, "id type function", "index")
        function = _object(call.get("function"), f"{where}.function")
        self._check_known(function, f"{where}.function", "name arguments")
        arguments = _text(function.get("arguments"), f"{where}.function.arguments")
        try:
            given = msgspec.json.decode(arguments.encode() or b"{}")
        except batch_api.JSON_ERRORS:
            given = None
        if not isinstance(given, dict):
            raise InputError("must be a JSON object", field=f"{where}.function.arguments")
        name = _text(function.get("name"), f"{where}.function.name")
        return {"type": "tool_use", "id": _text(call.get("id"), f"{where}.id"), "name": name, "input": given}

    def _parts(self, content: Any, where: str) -> list[Block]:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise InputError("must be a string or a list", field=where)
        return [self._part(_object(part, f"{where}[{at}]"), f"{where}[{at}]")
                for at, part in enumerate(content)]  # fmt: skip

    def _part(self, part: Mapping[str, Any], where: str) -> Block:
        block: Block
        match part.get("type"):
            case "text" | "refusal" as kind:
                block = {"type": "text", "text": _text(part.get(kind), f"{where}.{kind}")}
            case "image_url" as kind:
                image = _object(part.get(kind), f"{where}.image_url")
                self._check_known(image, f"{where}.image_url", "url", "detail")
                block = {"type": "image", "source": _source(image.get("url"), f"{where}.image_url.url")}
            case "file" as kind:
                block = self._document(_object(part.get(kind), f"{where}.file"), f"{where}.file")
            case _:
                raise InputError(_NO_COUNTERPART, field=f"{where}.type")
        self._check_known(part, where, f"type {kind} cache_control", "prompt_cache_breakpoint")
        cached = part.get("cache_control")
        return block if cached is None else {**block, "cache_control": cached}

    def _document(self, file: Mapping[str, Any], where: str) -> Block:
        self._check_known(file, where, "file_data filename")
        source = _source(file.get("file_data"), f"{where}.file_data")
        if source.get("media_type", "application/pdf") != "application/pdf":
            raise InputError("must be a PDF", field=f"{where}.file_data")
        title = file.get("filename")
        return {"type": "document", "source": source} | ({} if title is None else {"title": title})

    def _tool(self, tool: Any, where: str) -> dict[str, Any]:
        tool = _object(tool, where)
        if tool.get("type") != "function":
            raise InputError(_NO_COUNTERPART, field=f"{where}.type")
        self._check_known(tool, where, "type function cache_control")
        function = _object(tool.get("function"), f"{where}.function")
        self._check_known(function, f"{where}.function", "name description parameters strict")
        schema = function.get("parameters")
        schema = {"type": "object", "properties": {}} if schema is None else schema
        strict = function.get("strict") is True
        described = {
            "name": _text(function.get("name"), f"{where}.function.name"),
            "description": function.get("description"),
            "input_schema": fit_schema(schema, f"{where}.function.parameters") if strict else schema,
            "strict": strict or None,
            "cache_control": tool.get("cache_control"),
        }
        return {name: value for name, value in described.items() if value is not None}

    def _format(self, wanted: Any) -> dict[str, Any]:
        where = "response_format"
        wanted = _object(wanted, where)
        match wanted.get("type"):
            case "text":
                self._check_known(wanted, where, "type")
                return {}
            case "json_schema":
                self._check_known(wanted, where, "type json_schema")
            case _:
                raise InputError(f"{_NO_COUNTERPART}; ask for a json_schema", field=f"{where}.type")
        named = _object(wanted.get("json_schema"), f"{where}.json_schema")
        # Anthropic's schemas are always strict, and need no name.
        self._check_known(named, f"{where}.json_schema", "name description schema strict")
        schema = fit_schema(named.get("schema"), f"{where}.json_schema.schema")
        if named.get("description") is not None:
            schema = {"description": named["description"], **schema}
        return {"format": {"type": "json_schema", "schema": schema}}


def _object(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise InputError("must be an object", field=where)


def _list(value: Any, where: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise InputError("must be a list", field=where)


def _text(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    raise InputError("must be a string", field=where)


def _content(blocks: list[Block]) -> str | list[Block]:
    """Return blocks as content: a single text as a string. Anthropic refuses empty texts beside other blocks."""
    told = [block for block in blocks if block != {"type": "text", "text": ""}]
    if [block.keys() for block in told] == [{"type", "text"}]:
        return str(told[0]["text"])
    return told or ""


def _source(url: Any, where: str) -> dict[str, str]:
    url = _text(url, where)
    if url.startswith(("http://", "https://")):
        return {"type": "url", "url": url}
    head, found, data = url.partition(";base64,")
    if not found or not head.startswith("data:"):
        raise InputError("must be an http(s) address or a data: URL in base64", field=where)
    return {"type": "base64", "media_type": head.removeprefix("data:").split(";")[0], "data": data}


def _sampling(given: Mapping[str, Any], model: str) -> dict[str, Any]:
    found = {}
    for name in ("temperature", "top_p", "top_k"):
        value = given.get(name)
        if value is None or (value == 1 and name != "top_k"):
            continue  # 1 is the default, and newer models refuse even that
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
            raise InputError(_NO_COUNTERPART, field="tool_choice")
    if not has_tools:
        if found.get("type") in ("any", "tool"):
            raise InputError("asks for a tool, but lists none", field="tool_choice")
        return {}
    if parallel is False and found["type"] != "none":
        found["disable_parallel_tool_use"] = True
    return found
