"""JSON in answers that contain other text too: in a code fence, or after a sentence or thoughts. Pure.

Missing JSON is never completed or guessed: the text must contain exactly one complete value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from types import MappingProxyType
from typing import Any

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS

_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad", "seed:think")
_MARKS: Mapping[str, str] = MappingProxyType(
    {f"<{tag}>": f"</{tag}>" for tag in _TAGS}
    | {
        "◁think▷": "◁/think▷",
        "[think]": "[/think]",
        "<|begin_of_thought|>": "<|end_of_thought|>",
        "<|start_thinking|>": "<|end_thinking|>",
        "<|inner_prefix|>": "<|inner_suffix|>",
        "<|channel>thought": "<channel|>",
        "<unused94>": "<unused95>",
        "[unused16]": "[unused17]",
        "here is my thought process:": "here is my response:",
    }
)
"""Marks at the beginning and end of a model's thoughts, in lower case.

Models: Qwen, DeepSeek, Nemotron and Seed, Kimi, Magistral, Sky and QwQ, Command, Apertus, Gemma 4, MedGemma, Pangu,
Granite 3 (vllm/reasoning, 2026-11).
"""
_WORDS = "here is my response:"
"""End mark that counts only after a beginning mark, because ordinary answers contain these words too."""
_find_marks = re.compile("|".join(map(re.escape, (*_MARKS, *_MARKS.values()))), re.IGNORECASE).finditer
# Harmony, the format of gpt-oss: channels; the last `final` channel is the answer.
_CHANNEL = "<|channel|>"
_find_finals = re.compile(r"<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>").finditer
_find_end = re.compile(r"<\|(?:end|return|start|call)\|>").search
# The same channels from a server that strips the marks and keeps the words between the marks.
_is_bare_channel = re.compile(r"\s*(?:assistant)?(?:analysis|commentary)", re.IGNORECASE).match
_BARE_FINAL = "assistantfinal"


class EndlessThoughts(ValueError):
    """Raised for thoughts without an end mark: no text after their beginning is the answer."""


def marks_in(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each mark of thoughts."""
    return [mark.span() for mark in _find_marks(text)]


def without_thoughts(text: str) -> str:
    """Return the text outside of a model's thoughts. Raises EndlessThoughts.

    The opening mark may be missing, as some servers cut it off.
    """
    text = _final_channel(text)
    said, at, inside = [], 0, ""
    for mark in _find_marks(text):
        word = mark[0].lower()
        if inside:
            if word == inside:
                inside, at = "", mark.end()
        elif word in _MARKS:
            said.append(text[at : mark.start()])
            inside = _MARKS[word]
        elif word != _WORDS:
            said, at = [], mark.end()
    if inside:
        raise EndlessThoughts("the thoughts do not end")
    return "".join([*said, text[at:]])


def _final_channel(text: str) -> str:
    if _CHANNEL in text:
        finals = list(_find_finals(text))
        if not finals:
            raise EndlessThoughts("there is no final channel")
        text = text[finals[-1].end() :]
        end = _find_end(text)
        return text if end is None else text[: end.start()]
    if _BARE_FINAL in text and _is_bare_channel(text):
        return text.rpartition(_BARE_FINAL)[2]
    return text


_OPENS, _CLOSES = "{[", "}]"
_FENCE = re.compile(r"\A(`{3,}|~{3,})[\w+.-]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*\1\Z", re.DOTALL)
_BLANK = " \t\r\n\ufeff"
_NONE = object()


class NotOneValue(ValueError):
    """Raised for a text without exactly one complete JSON value."""


def _no_number(text: str) -> Any:
    raise NotOneValue(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


# Not strict: raw tabs and line breaks in strings are accepted.
_decoder = json.JSONDecoder(strict=False, parse_constant=_no_number, parse_float=_finite)


def value_in(text: str) -> Any:
    """Return the only JSON value in a text. Raises NotOneValue."""
    value = _value_around_marks(text)
    if value is _NONE:
        try:
            value = _said_value(without_thoughts(text))
        except EndlessThoughts as error:
            raise NotOneValue(str(error)) from None
    try:
        # Decoded again like any other answer, because the two decoders differ for large numbers.
        return msgspec.json.decode(json.dumps(value))
    except (*JSON_ERRORS, ValueError):
        raise NotOneValue("the value cannot be represented") from None


def _value_around_marks(text: str) -> Any:
    """Return the value if every mark of thoughts is inside its strings, as a quote from a document; else _NONE."""
    marks = marks_in(text)
    if not marks:
        return _NONE
    with suppress(NotOneValue):
        value, start, end = _only_one(text)
        if start < marks[0][0] and marks[-1][1] < end:
            return value
    return _NONE


def _said_value(text: str) -> Any:
    said = text.strip(_BLANK)
    if (fence := _FENCE.match(said)) is not None:
        said = fence[2].strip(_BLANK)
    try:
        return _whole(said)
    except ValueError:
        return _only_one(said)[0]


def _whole(text: str) -> Any:
    try:
        value, end = _decoder.raw_decode(text)
    except RecursionError:
        raise NotOneValue("the value is too deep") from None
    if end != len(text):
        raise NotOneValue("there is more after the value")
    return value


def _only_one(text: str) -> tuple[Any, int, int]:
    found: list[tuple[Any, int, int]] = []
    at = _next(text, 0)
    while at < len(text):
        try:
            value, end = _decoder.raw_decode(text, at)
            found.append((value, at, end))
            at = end
        except NotOneValue:
            raise
        except (ValueError, RecursionError):
            # A part of a broken object is not the answer. Brackets around anything but JSON are ordinary text.
            if text[at] == "{":
                raise NotOneValue("an object is broken") from None
            at = _after_bracket(text, at)
        at = _next(text, at)
    if len(found) != 1:
        raise NotOneValue(f"there are {len(found)} values")
    return found[0]


def _next(text: str, start: int) -> int:
    return min((at for mark in _OPENS if (at := text.find(mark, start)) >= 0), default=len(text))


def _after_bracket(text: str, start: int) -> int:
    """Return the index after the bracket that closes the bracket at `start`. Raises NotOneValue if it is not
    closed.
    """
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] in _OPENS) - (text[at] in _CLOSES)
        if depth == 0:
            if any(mark in text[start:at] for mark in '{"'):
                raise NotOneValue("a list is broken")
            return at + 1
    raise NotOneValue("a bracket is not closed")
