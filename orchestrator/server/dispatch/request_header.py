"""The parts of a row that the plan reads, decoded once and without copies.

`request_lines.check_line` decodes a line twice. It still handles, and reports, every line that is not clearly valid.
For a long row, only the body's position and the line's checksum are kept. The row is then sent without a second
decoding. The JSON decoder needs 0.1 s or more for 30 MB of brackets, and no other thread runs meanwhile.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS, MAX_LINE_BYTES, LineError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.request_lines import LONGEST_MODEL, CheckedLine, check_line, is_too_deep, short_url

_NONE = msgspec.Raw()


class RequestBody(msgspec.Struct, gc=False):
    """A request's body, for an endpoint whose rows cannot share a prefix."""

    model: str
    stream: Any = None

    @property
    def text(self) -> bytes | memoryview:
        """The text that the model reads first, as raw JSON in the order of a chat template."""
        return b""

    @property
    def most_tokens(self) -> Any:
        """The row's own limit on generated tokens, or None."""
        return None

    @property
    def is_plain(self) -> bool:
        """True if `check_line` would have no objection to this body."""
        return not self.stream and 0 < len(self.model) <= LONGEST_MODEL


class _Chat(RequestBody, gc=False):
    messages: msgspec.Raw = _NONE
    max_tokens: Any = None
    max_completion_tokens: Any = None
    tools: msgspec.Raw = _NONE

    @property
    def text(self) -> bytes | memoryview:
        return _joined(self.tools, self.messages) if len(self.tools) else memoryview(self.messages)

    @property
    def most_tokens(self) -> Any:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def is_plain(self) -> bool:
        messages = self.messages
        # No empty value has a colon, or is longer than a few bytes.
        return (
            not self.stream
            and 0 < len(self.model) <= LONGEST_MODEL
            and (len(messages) >= 100 or b":" in bytes(messages))
        )


class _Completion(RequestBody, gc=False):
    prompt: msgspec.Raw = _NONE
    max_tokens: Any = None

    @property
    def text(self) -> bytes | memoryview:
        return memoryview(self.prompt)

    @property
    def most_tokens(self) -> Any:
        return self.max_tokens


class _Response(RequestBody, gc=False):
    input: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    max_output_tokens: Any = None
    tools: msgspec.Raw = _NONE

    @property
    def text(self) -> bytes | memoryview:
        return _joined(self.tools, self.instructions, self.input)

    @property
    def most_tokens(self) -> Any:
        return self.max_output_tokens


def _joined(*parts: msgspec.Raw) -> bytes:
    return b"".join([bytes(part) for part in parts])


B = TypeVar("B", bound=RequestBody)


class Head(msgspec.Struct, Generic[B], gc=False):
    """A request line that passed every check, with only the fields that the plan uses."""

    custom_id: str
    method: str
    url: str
    body: B


class InputLine(msgspec.Struct):
    """A checked request line. Its id is copied unchanged into the result; its body goes to the upstream."""

    custom_id: msgspec.Raw
    body: msgspec.Raw


class LongRow(msgspec.Struct, frozen=True):
    """A long checked line: its id, the position `begin:end` of its body, and the line's length and checksum."""

    custom_id: msgspec.Raw
    begin: int
    end: int
    length: int
    checksum: int

    def read(self, raw: bytes) -> InputLine | None:
        """Return the line at the start of `raw` without decoding it, or None if it differs from the checked line."""
        view = memoryview(raw)
        if zlib.crc32(view[: self.length]) != self.checksum:
            return None
        return InputLine(self.custom_id, msgspec.Raw(view[self.begin : self.end]))


decode_line = json_decoder(InputLine).decode
_HOLE = b'"a text that was taken out"'
_BEGINNING = 64
_MOST_BESIDE = 64 * 1024
_MOST_TRIES = 8


def long_row(raw: bytes, head: Head[RequestBody]) -> LongRow | None:
    """Return the position of a checked line's body, or None unless one field of the body is nearly the whole line.

    Only the rest of the line is decoded.
    """
    text = head.body.text
    beside = len(raw) - len(text)
    if beside > _MOST_BESIDE:
        return None
    beginning, begin = bytes(text[:_BEGINNING]), 0
    for _ in range(_MOST_TRIES):
        begin = raw.find(beginning, begin, begin + beside + _BEGINNING)
        if begin < 0:
            return None
        if raw.startswith(text, begin):
            break
        begin += 1
    else:
        return None
    end = begin + len(text)
    line = decode_line(raw[:begin] + _HOLE + raw[end:])
    before, *after = bytes(line.body).split(_HOLE)
    if len(after) != 1:
        return None
    return LongRow(line.custom_id, begin - len(before), end + len(after[0]), len(raw), zlib.crc32(raw))


_BODIES: dict[str, type[RequestBody]] = {
    "/v1/chat/completions": _Chat,
    "/v1/completions": _Completion,
    "/v1/responses": _Response,
}
"""Body types of the endpoints whose rows can share a prefix in an upstream's cache."""


def can_share(endpoint: str) -> bool:
    """True if rows of this endpoint can share a prefix in an upstream's cache."""
    return endpoint in _BODIES


def reader(endpoint: str) -> Callable[[bytes], Head[RequestBody] | LineError]:
    """Return a reader of a batch's lines for this endpoint. The reader refuses exactly the lines that `check_line`
    refuses.
    """
    body, short = _BODIES.get(endpoint, RequestBody), short_url(endpoint)
    decode: Callable[[bytes], Head[RequestBody]] = json_decoder(Head[body]).decode  # type: ignore[valid-type]

    def read(raw: bytes) -> Head[RequestBody] | LineError:
        try:
            if len(raw) <= MAX_LINE_BYTES:
                head = decode(raw)
                is_here = head.url == endpoint or head.url == short
                is_whole = is_here and head.method == "POST" and head.custom_id and head.body.is_plain
                if is_whole and not is_too_deep(raw):
                    if not raw.isascii():
                        raw.decode()  # the JSON decoder does not check strings that it skips
                    return head
        except JSON_ERRORS:
            pass
        checked = check_line(raw, endpoint)
        if isinstance(checked, CheckedLine):
            return Head(checked.custom_id, "POST", checked.url, RequestBody(checked.model or ""))
        return checked

    return read
