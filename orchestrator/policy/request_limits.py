"""Limits that a user's own request line sets: inputs, output tokens, and numbers that are too large."""

from __future__ import annotations

import re

import msgspec
from msgspec.structs import astuple

from orchestrator.core.batch_api import NO_BODY, WITHOUT_OUTPUT
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import MAX_TOKENS
from orchestrator.settings.source_lines import MAX_DIGITS


class _Bounds(msgspec.Struct):
    max_completion_tokens: msgspec.Raw = NO_BODY
    max_output_tokens: msgspec.Raw = NO_BODY
    max_tokens: msgspec.Raw = NO_BODY
    n: msgspec.Raw = NO_BODY
    input: msgspec.Raw = NO_BODY


_BOUNDS = _Bounds.__struct_fields__[:-1]
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (MAX_DIGITS + 1))
_decode_bounds = json_decoder(_Bounds).decode
_decode_list = json_decoder(list[msgspec.Raw]).decode


def too_large(raw: bytes, url: str, body: msgspec.Raw) -> tuple[str | None, str] | None:
    """Return the first number in a request line that is too large, as (field, reason), or None.

    The field is None if the number is in no known field.
    """
    if len(raw) > MAX_DIGITS and _LONG_NUMBER.search(raw):
        try:
            msgspec.json.decode(raw)  # the digits may be inside a string
        except msgspec.DecodeError:
            return None, f"a number has more than {MAX_DIGITS:,} digits"
        except (RecursionError, UnicodeDecodeError):
            return None
    if url in WITHOUT_OUTPUT:
        return None
    found = _decode_bounds(body)
    for name, limit in zip(_BOUNDS, astuple(found), strict=False):
        if bytes(limit).isdigit() and int(limit) > MAX_TOKENS:
            return f"body.{name}", f"must be at most {MAX_TOKENS:,}"
    if (_most_output(found) or 0) > MAX_TOKENS:
        return "body.n", f"times max_tokens must be at most {MAX_TOKENS:,}"
    return None


def bounds(url: str, body: msgspec.Raw) -> tuple[int, int | None]:
    """Return a request's number of inputs, and the maximum tokens of its output (None: not limited)."""
    found = _decode_bounds(body)
    if url in WITHOUT_OUTPUT:
        # A list of numbers is one input: tokens of a text.
        inputs = _decode_list(found.input) if bytes(found.input).lstrip()[:1] == b"[" else []
        return (1 if not inputs or bytes(inputs[0])[:1].isdigit() else len(inputs)), 0
    return 1, _most_output(found)


def _most_output(found: _Bounds) -> int | None:
    for limit in (found.max_completion_tokens, found.max_output_tokens, found.max_tokens):
        if bytes(limit).isdigit():
            return int(limit) * (int(found.n) if bytes(found.n).isdigit() else 1)
    return None
