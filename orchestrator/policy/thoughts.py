"""Thoughts in the text of an answer, by the marks that models put around them. Pure.

A server with a parser for its model removes them; other servers leave them before the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

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
"""Marks at the beginning and end of thoughts, in lower case: Qwen, DeepSeek, Nemotron and Seed, Kimi, Magistral, Sky
and QwQ, Command, Apertus, Gemma 4, MedGemma, Pangu, Granite 3 (vllm/reasoning, 2026-11)."""
_WORDS = "here is my response:"
"""An end that counts only after a beginning: people write it, too."""
_find_marks = re.compile("|".join(map(re.escape, (*_MARKS, *_MARKS.values()))), re.IGNORECASE).finditer
# Harmony, the format of gpt-oss: channels; the last `final` channel is the answer.
_CHANNEL = "<|channel|>"
_find_finals = re.compile(r"<\|channel\|>final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>").finditer
_find_end = re.compile(r"<\|(?:end|return|start|call)\|>").search
# The same from a server that strips the marks and keeps the words between them.
_is_bare_channel = re.compile(r"\s*(?:assistant)?(?:analysis|commentary)", re.IGNORECASE).match
_BARE_FINAL = "assistantfinal"


class EndlessThoughts(ValueError):
    """Thoughts without an end: the text after their beginning is not the answer."""


def marks_in(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each mark of thoughts."""
    return [mark.span() for mark in _find_marks(text)]


def without_thoughts(text: str) -> str:
    """Return what a model says outside of its thoughts. Raises EndlessThoughts.

    A server may have cut off their opening mark.
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
    """Return the final channel of a text that has channels; any other text unchanged. Raises EndlessThoughts."""
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
