"""Settings of Together's Batch API in orch.toml."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field

from orchestrator.settings.backends import HostedBackend


class TogetherBackend(HostedBackend):
    """Together's Batch API. `discount` applies to the models in use; few models have a discount."""

    kind: Literal["together"]
    base_url: str = "https://api.together.ai/v1"
    discount: Decimal | None = Field(None, ge=0, lt=1, description="0.5 is half price, 0 the full price")

    @property
    def has_sync_api(self) -> bool:
        return True
