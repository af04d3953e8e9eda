"""Facts derived from model names: version, reasoning, accepted efforts and longest answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

LATEST = (99, 0)
MOST_MODELS = 256
"""Maximum number of model names whose facts are cached: every row looks up its model."""
_VENDOR = re.compile(r"^(?:ft:|arn:[^/]*/)?(?:[a-z0-9_.-]+/)*", re.IGNORECASE)


def plain_name(model: str) -> str:
    """Return a model's name in lower case, without vendor, AWS address, tuning prefix or variant after a colon."""
    return _VENDOR.sub("", model.strip(), count=1).split(":")[0].lower()


class Reasoning(Struct, frozen=True):
    """Reasoning of a model family: if it is on by default, and the efforts that a request may set.

    A family without efforts does not reason, or has no setting for it (o1-mini).
    """

    by_default: bool
    efforts: frozenset[str]

    def is_on(self, effort: Any) -> bool:
        """True if a request with this effort reasons. None stands for a request without an effort."""
        return self.by_default if effort is None else effort != "none"


def _efforts(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NEVER = Reasoning(False, frozenset())
_CLASSIC = _efforts("low medium high")
# The first match counts, so narrow patterns come first. Sources: OpenAI's model pages, read on 2026-11-26; tests of
# pydantic-ai 2026-11 against the Responses API; recorded answers.
_OPENAI: tuple[tuple[str, Reasoning], ...] = tuple(
    (pattern, Reasoning(by_default, _efforts(efforts)))
    for pattern, by_default, efforts in (
        (r"gpt-6(-astra|\.1-sol)", True, "low medium high xhigh max"),
        (r"gpt-[6-9]", True, "none low medium high xhigh max"),
        (r"gpt-5\.[2-9]-pro", True, "medium high xhigh"),
        (r"gpt-5\.\d-chat", True, "medium"),
        (r"gpt-5\.[2-9]-codex", True, "low medium high xhigh"),
        (r"gpt-5\.[6-9]", True, "none low medium high xhigh max"),
        (r"gpt-5\.5", True, "none low medium high xhigh"),
        (r"gpt-5\.[2-4]", False, "none low medium high xhigh"),
        (r"gpt-5\.1-codex-max", True, "low medium high xhigh"),
        (r"gpt-5\.1-codex", True, "low medium high"),
        (r"gpt-5\.1", False, "none low medium high"),
        (r"gpt-5-chat", False, ""),
        (r"gpt-5-pro", True, "high"),
        (r"gpt-5-codex", True, "low medium high"),
        (r"gpt-5", True, "minimal low medium high"),
        (r"o1-(mini|preview)", True, ""),
        (r"o\d", True, "low medium high"),
        (r"codex-mini", True, "low medium high"),
    )
)


@lru_cache(MOST_MODELS)
def openai_reasoning(model: str) -> Reasoning:
    """Return an OpenAI model's reasoning. A model with an unknown name is assumed not to reason."""
    name = plain_name(model)
    return next((found for pattern, found in _OPENAI if re.match(pattern, name)), _NEVER)


_OPENAI_MAX_TOKENS = tuple(
    (re.compile(pattern).match, most)
    for pattern, most in (
        (r"gpt-[5-9]", 128_000),
        (r"o1-mini", 65_536),
        (r"o1-preview", 32_768),
        (r"o\d", 100_000),
        (r"gpt-4\.1", 32_768),
        (r"gpt-4o-2024-05-13|gpt-4-|gpt-3\.?5", 4_096),
        (r"(chat)?gpt-4o", 16_384),
        (r"gpt-4$", 8_192),
    )
)
"""Longest answers of OpenAI models, in tokens, from OpenAI's model pages (read on 2026-11-26)."""


@lru_cache(MOST_MODELS)
def openai_most_tokens(model: str) -> int | None:
    """Return the longest answer of an OpenAI model, in tokens; None if unknown."""
    name = plain_name(model)
    return next((most for fits, most in _OPENAI_MAX_TOKENS if fits(name)), None)


_CLAUDE = re.compile(
    r"claude-(?:(?P<before>[a-z]+)-)?(?P<major>\d{1,2})(?:[.-](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<after>[a-z]+))?"
)
_CLAUDE_PREVIEW = re.compile(r"claude-(mythos|fable)")


class Claude(Struct, frozen=True):
    """A Claude model: its line (`opus`, `sonnet`, `haiku`, …) and version. An unknown version is `LATEST`."""

    line: str
    version: tuple[int, int]

    def since(self, **versions: tuple[int, int]) -> bool:
        """True if the model's version is at least the version that `versions` gives for its line.

        The entry `other` applies to lines without an entry. Without `other`, only the version `LATEST` is enough.
        """
        first = versions.get(self.line, versions.get("other", LATEST))
        return self.version >= first


_MYTHOS_PREVIEW = Claude("mythos", LATEST)


@lru_cache(MOST_MODELS)
def claude_of(model: str) -> Claude | None:
    """Return the Claude model with this name, or None for other models and for names without a version."""
    name = plain_name(model)
    if found := _CLAUDE.search(name):
        line = found["before"] or found["after"] or ""
        return Claude(line, (int(found["major"]), int(found["minor"] or 0)))
    if found := _CLAUDE_PREVIEW.search(name):
        return Claude(found[1], LATEST)
    return None


def claude_efforts(claude: Claude) -> frozenset[str]:
    """Return the efforts that a model accepts; empty if it has no effort setting."""
    if claude == _MYTHOS_PREVIEW:
        return _CLASSIC | {"max"}  # PrimeIntellect-ai/prime-agent#229: the preview has no xhigh
    if claude.since(opus=(4, 7), sonnet=(5, 0), other=(5, 0)):
        return _CLASSIC | {"xhigh", "max"}
    if claude.since(opus=(4, 6), sonnet=(4, 6)):
        return _CLASSIC | {"max"}
    return _CLASSIC if claude.since(opus=(4, 5)) else frozenset()


# Sources: Anthropic's model pages, read on 2026-11-26; a recorded refusal names 64,000 for haiku-4-5. Later models
# accept twice as much. Earlier models that are not listed are unknown.
_CLAUDE_MAX_TOKENS: Mapping[tuple[str, tuple[int, int]], int] = {
    ("opus", (3, 0)): 4_096,
    ("sonnet", (3, 0)): 4_096,
    ("haiku", (3, 0)): 4_096,
    ("sonnet", (3, 5)): 8_192,
    ("haiku", (3, 5)): 8_192,
    ("sonnet", (3, 7)): 64_000,
    ("opus", (4, 0)): 32_000,
    ("opus", (4, 1)): 32_000,
    ("sonnet", (4, 0)): 64_000,
    ("sonnet", (4, 5)): 64_000,
    ("haiku", (4, 5)): 64_000,
    ("opus", (4, 5)): 64_000,
    ("sonnet", (4, 6)): 64_000,
}
_NEWER_MAX_TOKENS = 128_000


def claude_most_tokens(claude: Claude) -> int | None:
    """Return the longest answer of a Claude model, in tokens; None if unknown."""
    known = _CLAUDE_MAX_TOKENS.get((claude.line, claude.version))
    return _NEWER_MAX_TOKENS if known is None and claude.version >= (4, 6) else known
