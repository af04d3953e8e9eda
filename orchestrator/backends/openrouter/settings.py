"""Settings of OpenRouter's Batch API in orch.toml."""

from __future__ import annotations

from typing import Literal

from orchestrator.settings.backends import HostedBackend


class OpenRouterBackend(HostedBackend):
    """OpenRouter's Batch API."""

    kind: Literal["openrouter"]
    base_url: str = "https://openrouter.ai/api/v1"

    @property
    def has_sync_api(self) -> bool:
        return True
