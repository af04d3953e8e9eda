"""Settings of Mistral's batch jobs in orch.toml."""

from __future__ import annotations

from typing import Literal

from orchestrator.settings.backends import HostedBackend


class MistralBackend(HostedBackend):
    """Mistral's batch jobs."""

    kind: Literal["mistral"]
    base_url: str = "https://api.mistral.ai/v1"

    @property
    def has_sync_api(self) -> bool:
        return True
