"""Settings of Scaleway's batches for the emulated provider, as a user has them."""

from __future__ import annotations

from typing import Any

from tests.emulator.scaleway_api import access_key_of


def scaleway_told(base_url: str, key: str, **more: Any) -> dict[str, Any]:
    """What orch.toml says of a backend with a secret key."""
    bucket_url = f"{base_url.removesuffix('/v1')}/s3"
    facts = {"kind": "scaleway", "base_url": base_url, "access_key": access_key_of(key), "bucket": "night-batches"}
    return {**facts, "bucket_url": bucket_url, **more}
