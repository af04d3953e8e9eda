"""Reading of an answer's body: its text, how it ended, and if the model refused.

A body in the usual format is decoded in one step. Any other body is read part by part, so that a malformed part does
not affect the others.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from orchestrator.core import batch_api, finish_reasons
from orchestrator.core.json_decoders import json_decoder
from orchestrator.policy import answer_parts

_QUOTE = ord('"')


class Answer(msgspec.Struct, frozen=True):
    """The content of an answer's body.

    `has_other` is true for tool calls, embeddings and the like, with or without text. `refusal` is the model's text
    if it is marked as a refusal. `data` is the field that an embedding has instead of choices. `messages` are the
    texts of a response with several messages, which `text` joins. `choices` counts answers to one request.
    """

    text: str | None
    finish_reason: str | None
    has_other: bool
    refusal: str | None = None
    data: msgspec.Raw | None = None
    messages: tuple[str, ...] = ()
    is_missing: bool = False
    """True if the body has no part that could hold an answer of any kind."""
    choices: int = 1


class _Message(msgspec.Struct):
    content: str | None
    tool_calls: list[msgspec.Raw] | None = None
    refusal: str | None = None
    function_call: None = None
    audio: None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    index: Any = None


class _Usual(msgspec.Struct):
    choices: list[_Choice]


class _Part(msgspec.Struct):
    text: str
    type: Literal["output_text"]


class _Item(msgspec.Struct):
    type: str
    role: Literal["assistant"] | None = None
    content: list[_Part] | None = None


class _UsualResponse(msgspec.Struct):
    output: list[_Item]
    incomplete_details: None = None
    choices: None = None


class _Body(msgspec.Struct):
    choices: msgspec.Raw = batch_api.NO_BODY
    data: msgspec.Raw = batch_api.NO_BODY
    output: msgspec.Raw = batch_api.NO_BODY
    incomplete_details: msgspec.Raw = batch_api.NO_BODY
    # Ollama's and Cohere's own endpoints put their single choice at the top level.
    message: msgspec.Raw = batch_api.NO_BODY
    response: msgspec.Raw = batch_api.NO_BODY
    finish_reason: msgspec.Raw = batch_api.NO_BODY
    done_reason: msgspec.Raw = batch_api.NO_BODY
    done: msgspec.Raw = batch_api.NO_BODY


class _OddChoice(msgspec.Struct):
    message: msgspec.Raw = batch_api.NO_BODY
    delta: msgspec.Raw = batch_api.NO_BODY
    text: msgspec.Raw = batch_api.NO_BODY
    finish_reason: msgspec.Raw = batch_api.NO_BODY
    index: Any = None


_decode_usual = json_decoder(_Usual).decode
_decode_response = json_decoder(_UsualResponse).decode
_decode_body = json_decoder(_Body).decode
_decode_choice = json_decoder(_OddChoice).decode
_decode_list = json_decoder(list[msgspec.Raw]).decode
_decode_fields = json_decoder(dict[str, msgspec.Raw]).decode


def answer_of(body: msgspec.Raw) -> Answer:
    """Return the answer in a body of chat completions, completions, responses, embeddings or any other kind."""
    try:
        choices = _decode_usual(body).choices
        choice = choices[0] if len(choices) == 1 else finish_reasons.first_choice(choices)
    except (*batch_api.JSON_ERRORS, IndexError):
        return _response(body) or _odd_answer(body)
    said = choice.message
    has_calls = bool(said.tool_calls)
    return Answer(said.content, choice.finish_reason, has_calls, said.refusal or None, choices=len(choices))


def _response(body: msgspec.Raw) -> Answer | None:
    try:
        output = _decode_response(body).output
    except batch_api.JSON_ERRORS:
        return None
    messages = [item for item in output if item.type == "message"]
    if len(messages) != 1:
        return None
    text = "".join([part.text for part in messages[0].content or ()])
    return Answer(text or None, None, any(item.type not in answer_parts.WORDLESS for item in output))


def _odd_answer(body: msgspec.Raw) -> Answer:
    try:
        parts = _decode_body(body)
    except batch_api.JSON_ERRORS:
        return Answer(None, None, False, is_missing=True)
    choices = []
    for raw in _each(parts.choices):
        with suppress(*batch_api.JSON_ERRORS):
            choices.append(_decode_choice(raw))
    if choices:
        return replace(_of_choice(finish_reasons.first_choice(choices)), choices=len(choices))
    output = answer_parts.read(parts.output)
    if isinstance(output, list):
        return _of_response(output, answer_parts.read(parts.incomplete_details))
    data = None if bytes(parts.data) in (b"", b"null") else parts.data
    has_choice = _fields(parts.message) or isinstance(answer_parts.read(parts.response), str)
    if data is None and has_choice and bytes(parts.done) != b"false":
        end = parts.done_reason if parts.finish_reason is batch_api.NO_BODY else parts.finish_reason
        return _of_choice(_OddChoice(parts.message, text=parts.response, finish_reason=end))
    return Answer(None, None, data is not None, data=data, is_missing=data is None)


def _each(raw: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _decode_list(raw)
    except batch_api.JSON_ERRORS:
        return []


def _of_choice(choice: _OddChoice) -> Answer:
    end = finish_reasons.end_word(answer_parts.read(choice.finish_reason))
    message: dict[str, Any] = {}
    for raw in (choice.message, choice.delta):
        if not message:
            message = _fields(raw)
    if not message:
        return Answer(answer_parts.content_text(answer_parts.read(choice.text)), end, False)
    content = message.get("content")
    refusal = answer_parts.refusal_text(message.get("refusal"), content)
    return Answer(answer_parts.content_text(content), end, answer_parts.has_calls(message), refusal)


def _fields(raw: msgspec.Raw) -> dict[str, Any]:
    """Return the fields of an object, each decoded separately. A text in place of the object becomes its content."""
    try:
        return {name: answer_parts.read(value) for name, value in _decode_fields(raw).items()}
    except batch_api.JSON_ERRORS:
        value = answer_parts.read(raw)
        return {"content": value} if isinstance(value, str) else {}


def _of_response(output: list[Any], incomplete: Any) -> Answer:
    messages = answer_parts.said_messages(output)
    texts = [text for item in messages if (text := answer_parts.content_text(item.get("content"), is_response=True))]
    refusals = [
        said for item in messages if (said := answer_parts.refusal_text(item.get("refusal"), item.get("content")))
    ]
    has_other = any(map(answer_parts.is_other, output))
    several = tuple(texts) if len(texts) > 1 else ()
    return Answer("".join(texts) or None, _reason(incomplete), has_other, "".join(refusals) or None, messages=several)


def text_of(line: batch_api.ResultLine) -> str | None:
    """Return the text of a result line's answer, or None for an answer without text."""
    return None if line.response is None else answer_of(response_json(line.response)).text


def _reason(incomplete: Any) -> str | None:
    """Return why a Responses API answer is incomplete, as a chat finish reason; None if it is complete."""
    reason = finish_reasons.end_word(incomplete)
    return "length" if reason in ("max_output_tokens", "max_tokens") else reason or None


def response_json(response: batch_api.ResultResponse) -> msgspec.Raw:
    """Return the body of a response. JSON inside a string (Mistral) is unwrapped."""
    body = response.body
    if memoryview(body)[0] != _QUOTE:
        return body
    try:
        inner = msgspec.json.decode(body, type=str).encode()
    except batch_api.JSON_ERRORS:
        return body
    return msgspec.Raw(inner) if inner.lstrip().startswith(b"{") else body
