"""What models at Bedrock refuse of Converse. Sources: the threads that `docs/reference/emulator.md` lists."""

from __future__ import annotations

import re

from tests.emulator.errors import Json
from tests.emulator.refusals.refused import Refused, refused

OF_MODEL = "The model returned the following errors: "
NO_SAMPLING = r"claude-(opus-(4-[7-9]|5)|sonnet-5|haiku-5|fable|mythos)"
ONE_OF_TWO = r"claude-(opus-4-[1-6]|sonnet-4-[56]|haiku-4-5)"
NO_FIELDS = {
    r"xai\.grok|openai\.gpt-[5-9]": ("temperature", "topP"),
    r"openai\.gpt-oss|qwen\.": ("stopSequences",),
}
MOST_TOKENS = {r"claude-(haiku|opus|sonnet)-4-5": 64_000, r"claude-3-haiku": 4_096}


def converse(model: str, request: Json) -> Refused | None:
    """The first refusal of a request."""
    config = request.get("inferenceConfig") or {}
    for pattern, names in NO_FIELDS.items():
        found = [name for name in names if name in config and re.search(pattern, model)]
        if found:
            return _refused(f"This model doesn't support the {found[0]} field. Remove {found[0]} and try again.")
    if "claude" not in model:
        return None
    given = [name for name in ("temperature", "topP") if name in config]
    if given and re.search(NO_SAMPLING, model):
        return _refused(
            f"{OF_MODEL}`{'temperature' if given[0] != 'topP' else 'top_p'}` is deprecated for this model."
        )
    if len(given) == 2 and re.search(ONE_OF_TWO, model):
        words = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
        return _refused(f"{OF_MODEL}{words}")
    if any(not stop.strip() for stop in config.get("stopSequences") or ()):
        return _refused(f"{OF_MODEL}stop_sequences: each stop sequence must contain non-whitespace")
    most = next((most for pattern, most in MOST_TOKENS.items() if re.search(pattern, model)), None)
    if most is not None and (config.get("maxTokens") or 0) > most:
        words = f"exceeds the model limit of {most}. Try again with a maximum tokens value that is lower than {most}."
        return _refused(f"The maximum tokens you requested {words}")
    return None


def _refused(words: str) -> Refused:
    return refused(words, code="ValidationException")
