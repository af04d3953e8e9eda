"""What the body of an answer says: its text, how it ended, and whether the model refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.core import wire

_QUOTE = ord('"')


@dataclass(frozen=True, slots=True)
class Answer:
    """What a body says. `has_other`: tool calls, embeddings or the like stand in place of text.

    `refusal` is what the model said in place of an answer, where it marked that as a refusal. `data` is what an
    embedding has in place of choices.
    """

    text: str | None
    finish_reason: str | None
    has_other: bool
    refusal: str | None = None
    data: msgspec.Raw | None = None


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: Any = None
    refusal: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    data: msgspec.Raw = wire.NO_BODY
    output: Any = None
    incomplete_details: Any = None


def answer_of(body: msgspec.Raw) -> Answer:
    """Text and end of an answer's body: chat completions, completions, responses, embeddings, anything else."""
    try:
        parsed = msgspec.json.decode(body, type=_Body)
    except wire.JSON_ERRORS:
        return Answer(None, None, False)
    if parsed.choices:
        choice = parsed.choices[0]
        if choice.message is not None:
            said, refusal = choice.message, choice.message.refusal
            no = str(refusal) if refusal else None
            return Answer(said.content, choice.finish_reason, bool(said.tool_calls), no)
        return Answer(choice.text, choice.finish_reason, False)
    if isinstance(parsed.output, list):
        parts = [part for item in parsed.output if isinstance(item, dict) for part in item.get("content") or ()]
        text, refusal = (
            "".join(str(part[kind]) for part in parts if isinstance(part, dict) and part.get(kind))
            for kind in ("text", "refusal")
        )
        has_other = not text and not refusal and any(map(_is_other, parsed.output))
        return Answer(text or None, _end_of(parsed.incomplete_details), has_other, refusal or None)
    data = None if bytes(parsed.data) in (b"", b"null") else parsed.data
    return Answer(None, None, data is not None, data=data)


def _is_other(item: Any) -> bool:
    """Whether an item of a response is more than what the model thought, or a message without a text."""
    return not isinstance(item, dict) or item.get("type", "message") not in ("message", "reasoning")


def text_of(line: wire.ResultLine) -> str | None:
    """What a result line's answer says, None where it has no text."""
    return None if line.response is None else answer_of(response_json(line.response)).text


def _end_of(incomplete: Any) -> str | None:
    """Why an answer of the Responses API is not whole, in the words of a chat completion; None where it is."""
    reason = incomplete.get("reason") if isinstance(incomplete, dict) else None
    return "length" if reason == "max_output_tokens" else str(reason) if reason else None


def response_json(response: wire.ResultResponse) -> msgspec.Raw:
    """The body of a response, also where it is JSON in a string (Mistral)."""
    body = response.body
    if memoryview(body)[0] != _QUOTE:
        return body
    try:
        inner = msgspec.json.decode(body, type=str).encode()
    except wire.JSON_ERRORS:
        return body
    return msgspec.Raw(inner) if inner.lstrip().startswith(b"{") else body
