"""Settings in orch.toml for a backend that uses OpenAI's Batch protocol."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, field_validator, model_validator

from orchestrator.backends.openai.profiles import PROFILES
from orchestrator.settings.backends import Discount, NotifyingBackend, window_seconds


def _is_a_profile(name: str) -> str:
    if name not in PROFILES:
        near = get_close_matches(name.lower(), PROFILES, 1)
        cure = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(PROFILES)}"
        raise ValueError(f"is not a known profile; {cure}")
    return name


class OpenAIBackend(NotifyingBackend):
    """Settings of a Batch API that uses OpenAI's protocol.

    `profile` names the provider's profile. By default, the address determines the profile.
    """

    kind: Literal["openai", "azure"]
    base_url: str = "https://api.openai.com/v1"
    profile: Annotated[str, AfterValidator(_is_a_profile)] | None = None
    provider: str | None = None
    organization: str | None = None
    project: str | None = None
    windows: tuple[str, ...] | None = None
    discount: Discount = None

    @property
    def has_sync_api(self) -> bool:
        return self.kind == "openai"

    @field_validator("organization", "project")
    @classmethod
    def _fits_into_a_header(cls, value: str | None) -> str | None:
        if value is not None and not (value and value.isascii() and value.isprintable() and " " not in value):
            raise ValueError("is not an id such as org-1a2b: it is empty or has invalid characters")
        return value

    @field_validator("windows")
    @classmethod
    def _are_windows(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for window in value or ():
            window_seconds(window)
        return value

    @model_validator(mode="after")
    def _azure_has_an_address(self) -> OpenAIBackend:
        if self.kind == "azure" and "base_url" not in self.model_fields_set:
            raise ValueError('an azure backend needs `base_url = "https://RESOURCE.openai.azure.com/openai/v1/"`')
        return self
