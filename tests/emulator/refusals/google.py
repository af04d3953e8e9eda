"""What Gemini's models refuse of `generateContent`, at Google's API and at Vertex.

Sources: the threads that `docs/reference/emulator.md` lists; levels of thinking as they were probed on 2026-09-11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.emulator.errors import Json
from tests.emulator.refusals.refused import Refused, first, refused

NO_MINIMAL = r"gemini-3(\.1)?-pro|gemini-3\.[78]-flash"
CODE = "INVALID_ARGUMENT"


def gemini(model: str, request: Json) -> Refused | None:
    """The first refusal at Google's own API."""
    return first(
        [*_settings(model, request, r"gemini-(2\.5|3)", f"enabled for models/{model}"), _gemma(model, request)]
    )


def vertex(model: str, request: Json) -> Refused | None:
    """The first refusal at Vertex, where models before Gemini 3 take penalties and probabilities."""
    return first(_settings(model, request, r"gemini-3", "supported for this model"))


def _settings(model: str, request: Json, without: str, words: str) -> Iterator[Refused | None]:
    config = request.get("generationConfig") or {}
    if request.get("cachedContent") and any(map(request.get, ("systemInstruction", "tools", "toolConfig"))):
        told = "CachedContent can not be used with GenerateContent request setting "
        yield refused(f"{told}system_instruction, tools or tool_config.", code=CODE)
    if re.match(without, model):
        if config.get("presencePenalty") or config.get("frequencyPenalty"):
            yield refused(f"Penalty is not {words}", code=CODE)
        if config.get("responseLogprobs"):
            yield refused(f"Logprobs is not {words}", code=CODE)
    thinking = config.get("thinkingConfig") or {}
    level = str(thinking.get("thinkingLevel") or "").upper()
    if level and not model.startswith("gemini-3"):
        yield refused("Thinking level is not supported for this model.", code=CODE)
    elif level == "MINIMAL" and re.match(NO_MINIMAL, model):
        told = "Thinking level MINIMAL is not supported for this model. Please retry with other thinking level."
        yield refused(told, code=CODE)
    if thinking.get("thinkingBudget") == 0 and model.startswith("gemini-2.5-pro"):
        yield refused("Budget 0 is invalid. This model only works in thinking mode.", code=CODE)


def _gemma(model: str, request: Json) -> Refused | None:
    if not model.startswith("gemma-3"):
        return None
    if request.get("systemInstruction"):
        return refused(f"Developer instruction is not enabled for models/{model}", code=CODE)
    if (request.get("generationConfig") or {}).get("responseMimeType") == "application/json":
        return refused(f"JSON mode is not enabled for models/{model}", code=CODE)
    return None
