"""The recipient of a request: its provider and the rules for spelling requests."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

LOCAL = "local"
OTHER = "other"
ANTHROPIC_CHAT = "anthropic-chat"
"""Anthropic's OpenAI-compatible chat completions, meant for tests. The provider `anthropic` is its Messages API."""

_HOSTS = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure",
    "services.ai.azure.com": "azure",
    "api.anthropic.com": "anthropic",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.deepseek.com": "deepseek",
    "api.x.ai": "xai",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "openrouter.ai": "openrouter",
    "api.together.ai": "together",
    "api.together.xyz": "together",
}
# The price table's names for providers that are named differently here.
_PRICED_AS = {"xai": "x-ai", "moonshot": "moonshotai"}
_CALLED = {listed: name for name, listed in _PRICED_AS.items()}


class Structured(StrEnum):
    """Way to ask a server for JSON. Answers are always checked against the task's schema."""

    JSON_SCHEMA = "json_schema"  # the server enforces the schema
    JSON_OBJECT = "json_object"  # the server enforces JSON; the schema is in the prompt
    NONE = "none"  # the server has no field for JSON; only the prompt asks for it


class OwnRule(Struct, frozen=True):
    """A rule under `dialect` of a backend in orch.toml, for the models that match the glob `models`.

    Exactly one of these is set:

    - `like`: a model with the same rules
    - `endpoint`: the only endpoint available
    - `structured`: the way to ask for JSON
    - `field`, with `rename`, `at_least`, `at_most` or `refuse`
    """

    models: str = "*"
    field: str | None = None
    rename: str | None = None
    refuse: bool = False
    at_least: float | None = None
    at_most: float | None = None
    like: str | None = None
    endpoint: str | None = None
    structured: Structured | None = None

    def holds_for(self, model: str) -> bool:
        """Return True if the rule applies to this model."""
        return fnmatchcase(model, self.models)


class TableLine(Protocol):
    """A rule of a table, such as `TableRule`."""

    @property
    def change(self) -> Any:
        """Effect of the rule on a draft."""

    def holds_for(self, provider: str, model: str) -> bool:
        """Return True if the rule applies to a model at a provider."""

    def apply(self, draft: Any) -> None:
        """Apply the change to a draft."""


class Recipient(Struct, frozen=True):
    """A backend as the dialect sees it.

    `structured` is the way to ask for JSON, or None for the default. `rules` are the user's rules. `table` has the
    rules of the backend's own package. The rules of `rules_by_model` always apply as well.
    """

    provider: str = OTHER
    structured: Structured | None = None
    rules: tuple[OwnRule, ...] = ()
    table: tuple[TableLine, ...] = ()


UNKNOWN = Recipient()
"""A server without known properties."""


def provider_at(base_url: str, named: str | None = None) -> str:
    """Return the provider at `base_url`. `named`, the provider's name in orch.toml, takes precedence."""
    if named is not None:
        return _CALLED.get(named, named)
    host = urlsplit(base_url).hostname or ""
    return next((name for end, name in _HOSTS.items() if host == end or host.endswith("." + end)), OTHER)


def priced_as(base_url: str) -> str | None:
    """Return the provider's name in the price table, or None for an unknown provider."""
    name = provider_at(base_url)
    return None if name == OTHER else _PRICED_AS.get(name, name)
