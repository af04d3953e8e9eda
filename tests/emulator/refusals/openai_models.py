"""OpenAI's models, from its model pages, its reasoning guide, its SDK 3.52 and recorded answers (2026-11).

Rows of a table are tried in order; the first whose pattern fits the start of a model's name counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LOW_TO_HIGH = ("low", "medium", "high")
TO_XHIGH = (*LOW_TO_HIGH, "xhigh")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a family reasons: without being asked, and at which efforts. The effort `none` turns it off."""

    by_default: bool
    efforts: tuple[str, ...]

    def is_on(self, effort: object) -> bool:
        """True if a request with this effort (None: not said) reasons."""
        if effort is None:
            return self.by_default
        return effort != "none" or "none" not in self.efforts


ALWAYS_MEDIUM = Reasoning(True, ("medium",))

_REASONING: tuple[tuple[str, Reasoning], ...] = (
    (r"gpt-6(-astra|\.1-sol)", Reasoning(True, (*TO_XHIGH, "max"))),
    (r"gpt-6", Reasoning(True, ("none", *TO_XHIGH, "max"))),
    (r"gpt-5\.[2-9]-pro", Reasoning(True, ("medium", "high", "xhigh"))),
    (r"gpt-5\.[1-9]-chat", ALWAYS_MEDIUM),
    (r"gpt-5\.6", Reasoning(True, ("none", *TO_XHIGH, "max"))),
    (r"gpt-5\.5", Reasoning(True, ("none", *TO_XHIGH))),
    (r"gpt-5\.[2-9]-codex", Reasoning(True, TO_XHIGH)),
    (r"gpt-5\.[234]", Reasoning(False, ("none", *TO_XHIGH))),
    (r"gpt-5\.1-codex", Reasoning(True, TO_XHIGH)),
    (r"gpt-5\.1", Reasoning(False, ("none", *LOW_TO_HIGH))),
    (r"gpt-5-pro", Reasoning(True, ("high",))),
    (r"gpt-5-codex", Reasoning(True, LOW_TO_HIGH)),
    (r"gpt-5(?!-chat)", Reasoning(True, ("minimal", *LOW_TO_HIGH))),
    (r"o1-(mini|preview)", Reasoning(True, ())),
    (r"(o1|o3|o4)(-|$)|codex-mini", Reasoning(True, LOW_TO_HIGH)),
)

_KNOWN = r"gpt-(3|4|5|6|audio)|o[134](-|$)|chatgpt-|codex-|computer-use|text-embedding|davinci|babbage"
_ONLY_RESPONSES = r"(gpt-5(\.\d)?|gpt-6|o1|o3)-pro|.*codex|.*deep-research|computer-use|gpt-(5\.6|6)-(cyber|rosalind)"
_ONLY_CHAT = r"gpt-4o(-mini)?-(search|audio)|gpt-audio|gpt-5-search-api|o1-mini"
_SOUND = r"whisper|tts-|gpt-4o(-mini)?-(tts|transcribe|realtime)|gpt-realtime"
_NOT_TEXT = rf"{_SOUND}|(chat)?gpt-image|dall-e|omni-moderation"
_NOT_CHAT = rf"text-embedding|gpt-3\.5-turbo-instruct|davinci|babbage|{_NOT_TEXT}"
_NO_SCHEMA = r"gpt-3\.5|gpt-4(-|$)|gpt-4o-2024-05-13|gpt-4o(-mini)?-audio|gpt-audio|o1-(mini|preview)"
_NO_JSON = r"gpt-4(-0314|-0613|-32k.*)?$|gpt-4-vision|gpt-3\.5-turbo-(0301|0613|16k)|o1-(mini|preview)"

_MOST_TOKENS = (
    (r"gpt-(5|6)", 128_000),
    (r"o1-mini", 65_536),
    (r"o1-preview", 32_768),
    (r"o[134]", 100_000),
    (r"gpt-4\.1", 32_768),
    (r"gpt-4o-2024-05-13|gpt-4-(turbo|1106|0125|vision)|gpt-3\.5", 4_096),
    (r"gpt-4o|chatgpt-4o", 16_384),
    (r"gpt-4(-|$)", 8_192),
)
_DIMENSIONS = (("text-embedding-3-small", 1_536), ("text-embedding-3-large", 3_072))


def base_of(model: str) -> str:
    """The model behind a fine-tuned one, whose name is `ft:BASE:ORGANISATION::ID`."""
    return model.split(":")[1] if is_tuned(model) else model


def is_tuned(model: str) -> bool:
    return model.startswith("ft:")


def is_known(model: str) -> bool:
    """True if it is a name of OpenAI's: nothing is known of others, and nothing about them is refused."""
    return re.match(_KNOWN, model) is not None


def reasoning_of(model: str) -> Reasoning | None:
    """How it reasons, None if it does not."""
    return next((found for pattern, found in _REASONING if re.match(pattern, model)), None)


def is_only_at_responses(model: str) -> bool:
    return re.match(_ONLY_RESPONSES, model) is not None


def is_only_at_chat(model: str) -> bool:
    return re.match(_ONLY_CHAT, model) is not None


def is_embedding(model: str) -> bool:
    return model.startswith("text-embedding")


def cannot_chat(model: str) -> bool:
    return re.match(_NOT_CHAT, model) is not None


def takes_format(model: str, kind: str) -> bool:
    """True if its answers can be asked for in this response format."""
    pattern = {"json_schema": _NO_SCHEMA, "json_object": _NO_JSON}.get(kind)
    return pattern is None or re.match(pattern, model) is None


def takes_stop(model: str) -> bool:
    """o3-mini and the o1 family do; the later ones, and every gpt-5 and gpt-6, do not."""
    if re.match(r"o3(?!-mini)|o4", model):
        return False
    return re.match(r"gpt-[56]", model) is None or reasoning_of(model) is None


def takes_system(model: str) -> bool:
    return re.match(r"o1-(mini|preview)", model) is None


def most_tokens(model: str) -> int | None:
    return next((most for pattern, most in _MOST_TOKENS if re.match(pattern, model)), None)


def most_dimensions(model: str) -> int | None:
    return next((most for name, most in _DIMENSIONS if model.startswith(name)), None)
