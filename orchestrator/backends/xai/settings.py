"""Settings of xAI's Batch API in orch.toml."""

from __future__ import annotations

from typing import Literal

from orchestrator.settings.backends import HostedBackend


class XaiBackend(HostedBackend):
    """xAI's Batch API."""

    kind: Literal["xai"]
    base_url: str = "https://api.x.ai/v1"

    @property
    def has_sync_api(self) -> bool:
        return True
