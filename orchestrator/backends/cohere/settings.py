"""Settings of Cohere's Batch API in orch.toml."""

from __future__ import annotations

from typing import Literal

from orchestrator.settings.backends import Discount, HostedBackend


class CohereBackend(HostedBackend):
    """Cohere's Batch API. No source states the price of batches, so the user sets `discount`."""

    kind: Literal["cohere"]
    base_url: str = "https://api.cohere.com"
    discount: Discount = None
