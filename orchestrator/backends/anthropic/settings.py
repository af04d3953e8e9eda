"""Settings of Anthropic's Message Batches in orch.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.core.model import MAX_TOKENS
from orchestrator.settings.backends import HostedBackend


class AnthropicBackend(HostedBackend):
    """Anthropic's Message Batches. `max_tokens` is for rows without one, because the API requires it."""

    kind: Literal["anthropic"]
    base_url: str = "https://api.anthropic.com"
    max_tokens: int = Field(4096, ge=1, le=MAX_TOKENS)
