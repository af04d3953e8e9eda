"""Anthropic's prompt cache: a marked prefix is read where it was written before, else written.

Rows of a batch begin side by side `cache_after_s` after its creation, so none of them reads what another one writes.
Source: Anthropic's guide to prompt caching; bike4mind#2741.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.emulator.errors import Json
from tests.emulator.rowfaults import PLAIN, Effect

LEAST = 1024
LIVES = {"5m": 300.0, "1h": 3600.0}


@dataclass(slots=True)
class PromptCache:
    """Until when each prefix of an account and a model is kept."""

    until: dict[tuple[str, str, bytes], float] = field(default_factory=dict)

    def effect(self, account: str, params: Json, at: float, *, writes: bool) -> Effect:
        """What a request reads or writes; it is kept for others only if it `writes`."""
        found = _marked(params)
        if found is None:
            return PLAIN
        digest, tokens, life = found
        key = (account, params["model"], digest)
        is_there = self.until.get(key, 0.0) > at
        if writes or is_there:
            self.until[key] = at + LIVES[life]
        return Effect(reads=tokens) if is_there else Effect(writes=tokens, is_hour=life == "1h")


def _marked(params: Json) -> tuple[bytes, int, str] | None:
    """Digest and tokens of the prefix up to the last mark, and how long it lives."""
    texts: list[str] = [json.dumps(params.get(name)) for name in ("tools", "output_config")]
    size, found = 0, None
    for text, control in _blocks(params):
        texts.append(text)
        size += len(text.encode())
        if control is not None:
            digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()
            found = digest, -(-size // 4), control.get("ttl", "5m")
    return None if found is None or found[1] < LEAST else found


def _blocks(params: Json) -> Iterator[tuple[str, Json | None]]:
    turns = [params.get("system") or [], *(turn.get("content") or [] for turn in params["messages"])]
    for content in turns:
        for block in [{"text": content}] if isinstance(content, str) else content:
            yield block.get("text", ""), block.get("cache_control")
