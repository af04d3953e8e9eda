"""Settings of Fireworks' batch inference in orch.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.settings.backends import HostedBackend


class FireworksBackend(HostedBackend):
    """Fireworks' batch inference, with datasets in a Fireworks account."""

    kind: Literal["fireworks"]
    base_url: str = "https://api.fireworks.ai"
    account: str = Field(pattern=r"^[a-z0-9][-a-z0-9]*$", max_length=63, description="the account's id")
