"""What real providers refuse, by provider, endpoint and model: tables of the emulator's own.

They are written from the providers' documentation, their SDKs and recorded refusals, and import nothing of
`orchestrator`: what both ends had from one hand would show nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from tests.emulator.errors import Json
from tests.emulator.refusals import amazon, anthropic, cohere, google, openai, synchronous
from tests.emulator.refusals.refused import Check, Refused

__all__ = ["SYNCHRONOUS", "Refused", "refusal_of"]

CHAT = "/v1/chat/completions"
_OPENAI: dict[str, Check] = {
    CHAT: openai.chat,
    "/v1/responses": openai.responses,
    "/v1/embeddings": openai.embeddings,
}
SYNCHRONOUS: dict[str, Check] = {
    "groq": synchronous.groq,
    "mistral": synchronous.mistral,
    "deepseek": synchronous.deepseek,
    "xai": synchronous.xai,
    "moonshot": synchronous.moonshot,
    "openrouter": synchronous.openrouter,
}
"""Providers that are asked at chat completions only; Groq has batches too."""

_TABLES: dict[str, dict[str, Check]] = {
    "openai": _OPENAI,
    "azure": _OPENAI,
    "anthropic": {"/v1/messages": anthropic.messages},
    "gemini": {"generateContent": google.gemini},
    "vertex": {"generateContent": google.vertex},
    "bedrock": {"converse": amazon.converse},
    "cohere": {CHAT: cohere.chat},
    **{flavour: {CHAT: check} for flavour, check in SYNCHRONOUS.items()},
}
_TEXTS = (
    *("messages", "input", "system", "instructions", "content", "text"),
    *("contents", "systemInstruction", "parts"),
)
_KEPT = ("role", "type")


def refusal_of(flavour: str, endpoint: str, body: Json) -> Refused | None:
    """What a provider says of a request's body, None if it takes it."""
    check = _TABLES.get(flavour, {}).get(endpoint)
    model = body.get("model")
    if check is None or not isinstance(model, str):
        return None
    shown = {name: value if name not in _TEXTS or name == "text" else _gist(value) for name, value in body.items()}
    return _checked(check, model, msgspec.json.encode(shown))


def _gist(value: Any) -> Any:
    """All that a rule looks at in a text: whether there is any, and whether the word "json" is in it."""
    if isinstance(value, str):
        return "json" if "json" in value.lower() else value and "x"
    if isinstance(value, list):
        return [_gist(item) for item in value]
    if isinstance(value, dict):
        return {name: _gist(part) if name in _TEXTS else part for name, part in value.items() if name in _SHOWN}
    return None


_SHOWN = (*_TEXTS, *_KEPT)


@lru_cache(maxsize=256)
def _checked(check: Check, model: str, body: bytes) -> Refused | None:
    """Most rows of a batch differ from the one before in their text alone."""
    return check(model, msgspec.json.decode(body))
