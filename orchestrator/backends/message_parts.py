"""OpenAI's messages as parts, for providers with their own message format. Pure.

A field without a counterpart is never dropped silently. A field that would change the answer is refused. A field
without effect on the answer (a label, a hint for OpenAI's cache) is omitted, and its name is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import InputError

NO_COUNTERPART = "has no counterpart"
_DATA_URL = re.compile(r"data:([\w.+/-]+)(?:;[\w.=-]+)*;base64,", re.ASCII)
# A model accepts its own thoughts only with their signature, for which OpenAI's shape has no field.
_NO_PLACE = "name annotations reasoning_content reasoning other_content"
Json = dict[str, Any]
LeftOut = dict[str, None]
"""Names of the omitted fields, without duplicates."""


class MessagePart(Struct, frozen=True):
    """A part of a message, with its location for error messages. `cache_control` marks it for Anthropic's prompt
    cache.
    """

    where: str


class TextPart(MessagePart, frozen=True):
    text: str
    cache_control: Any = None


class PicturePart(MessagePart, frozen=True):
    url: str
    cache_control: Any = None


class DocumentPart(MessagePart, frozen=True):
    url: str
    name: Any
    cache_control: Any = None


class SoundPart(MessagePart, frozen=True):
    data: str
    format: str


class CallPart(MessagePart, frozen=True):
    """A function call. `extra` is Google's field that carries a thought signature."""

    id: str
    name: str
    arguments: Json
    extra: Any


class ResultPart(MessagePart, frozen=True):
    """The result of a function call."""

    call_id: str
    parts: list[MessagePart]


class Turn(Struct, frozen=True):
    """Consecutive messages of one role."""

    role: str
    parts: list[MessagePart]


def read_messages(messages: Any, left_out: LeftOut) -> tuple[list[MessagePart], list[Turn]]:
    """Return the parts of the system prompt, and the turns. Adds the names of omitted fields to `left_out`.

    Raises InputError, which names the field, for a field that would change the answer.
    """
    system: list[MessagePart] = []
    turns: list[Turn] = []
    for at, message in enumerate(list_of(messages, "messages")):
        where = f"messages[{at}]"
        role, parts = _message(object_of(message, where), where, left_out)
        if role == "system":
            system += parts
            if turns:
                left_out["messages[].role: the place of a later system message"] = None
        elif turns and turns[-1].role == role:
            turns[-1].parts.extend(parts)
        else:
            turns.append(Turn(role, parts))
    if not turns:
        raise InputError("must hold more than a system prompt", field="messages")
    return system, turns


def _message(message: Json, where: str, left_out: LeftOut) -> tuple[str, list[MessagePart]]:
    content = message.get("content")
    match message.get("role"):
        case "system" | "developer" | "user" as role:
            check_known(message, where, "role content", left_out, "name")
            return "user" if role == "user" else "system", _parts(content, f"{where}.content", left_out)
        case "assistant":
            return "assistant", _assistant(message, where, left_out)
        case "tool":
            check_known(message, where, "role content tool_call_id", left_out, "name")
            call_id = text_of(message.get("tool_call_id"), f"{where}.tool_call_id")
            return "user", [ResultPart(where, call_id, _parts(content, f"{where}.content", left_out))]
        case role:
            raise InputError(f"the role {role!r} {NO_COUNTERPART}", field=f"{where}.role")


def _assistant(message: Json, where: str, left_out: LeftOut) -> list[MessagePart]:
    check_known(message, where, "role content refusal tool_calls", left_out, _NO_PLACE)
    parts = list[MessagePart]()
    for name in ("content", "refusal"):
        if message.get(name) is not None:
            parts += _parts(message[name], f"{where}.{name}", left_out)
    calls = message.get("tool_calls")
    for at, call in enumerate([] if calls is None else list_of(calls, f"{where}.tool_calls")):
        parts.append(_call(object_of(call, f"{where}.tool_calls[{at}]"), f"{where}.tool_calls[{at}]", left_out))
    if not parts:
        raise InputError("is missing", field=f"{where}.content")
    return parts


def _call(call: Json, where: str, left_out: LeftOut) -> CallPart:
    if call.get("type") != "function":
        raise InputError(NO_COUNTERPART, field=f"{where}.type")
    check_known(call, where, "id type function extra_content", left_out, "index")
    function = object_of(call.get("function"), f"{where}.function")
    check_known(function, f"{where}.function", "name arguments", left_out)
    said = text_of(function.get("arguments"), f"{where}.function.arguments")
    try:
        arguments = msgspec.json.decode(said.encode() or b"{}")
    except JSON_ERRORS:
        arguments = None
    if not isinstance(arguments, dict):
        raise InputError("must be a JSON object", field=f"{where}.function.arguments")
    name = text_of(function.get("name"), f"{where}.function.name")
    return CallPart(where, text_of(call.get("id"), f"{where}.id"), name, arguments, call.get("extra_content"))


def _parts(content: Any, where: str, left_out: LeftOut) -> list[MessagePart]:
    if isinstance(content, str):
        return [TextPart(where, content)]
    if not isinstance(content, list):
        raise InputError("must be a string or a list", field=where)
    places = (f"{where}[{at}]" for at in range(len(content)))
    return [_part(object_of(part, place), place, left_out) for part, place in zip(content, places, strict=True)]


def _part(part: Json, where: str, left_out: LeftOut) -> MessagePart:
    kind = part.get("type")
    if kind not in ("text", "refusal", "image_url", "file", "input_audio"):
        raise InputError(NO_COUNTERPART, field=f"{where}.type")
    check_known(part, where, f"type {kind} cache_control", left_out, "prompt_cache_breakpoint")
    place, cached = f"{where}.{kind}", part.get("cache_control")
    if kind in ("text", "refusal"):
        return TextPart(where, text_of(part.get(kind), place), cached)
    inner = object_of(part.get(kind), place)
    match kind:
        case "image_url":
            check_known(inner, place, "url", left_out, "detail")
            return PicturePart(where, text_of(inner.get("url"), f"{place}.url"), cached)
        case "file":
            check_known(inner, place, "file_data filename", left_out)
            return DocumentPart(
                where, text_of(inner.get("file_data"), f"{place}.file_data"), inner.get("filename"), cached
            )
        case _:
            data, sound = (text_of(inner.get(name), f"{place}.{name}") for name in ("data", "format"))
            return SoundPart(where, data, sound)


def check_known(value: Mapping[str, Any], where: str, known: str, left_out: LeftOut, dropped: str = "") -> None:
    """Raise InputError for a non-null field whose name is in neither `known` nor `dropped`.

    Both are names separated by spaces. A non-empty field in `dropped` is recorded in `left_out`.
    """
    translated, without_place = known.split(), dropped.split()
    for name, inner in value.items():
        if name in without_place and inner:
            left_out[re.sub(r"\[\d+\]", "[]", f"{where}.{name}")] = None
        elif inner is not None and name not in translated and name not in without_place:
            raise InputError(NO_COUNTERPART, field=f"{where}.{name}")


def data_in(url: str) -> tuple[str, str] | None:
    """Return the media type and the base64 content of a `data:` URL; None for any other URL."""
    found = _DATA_URL.match(url)
    return None if found is None else (found[1], url[found.end() :])


def texts(parts: list[MessagePart]) -> Iterator[str]:
    """Yield the texts among parts."""
    return (part.text for part in parts if isinstance(part, TextPart))


def object_of(value: Any, where: str) -> Json:
    if isinstance(value, dict):
        return value
    raise InputError("must be an object", field=where)


def list_of(value: Any, where: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise InputError("must be a list", field=where)


def text_of(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    raise InputError("must be a string", field=where)
