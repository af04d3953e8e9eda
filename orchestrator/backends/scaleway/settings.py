"""Settings of Scaleway's Batches API in orch.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from orchestrator.settings.backends import BucketFolder, Discount, HostedBackend, url_of


class ScalewayBackend(HostedBackend):
    """Scaleway's Batches API, with input and output in a bucket of the same project.

    `access_key` belongs to the secret key that `api_key_env` names. `bucket_url` replaces the bucket's own address.
    """

    kind: Literal["scaleway"]
    base_url: str = "https://api.scaleway.ai/v1"
    access_key: str = Field(pattern=r"^\S+$", max_length=200, description="SCW..., the access key of the API key")
    region: str = Field("fr-par", pattern=r"^[a-z]{2}-[a-z]{3}$", description="of the bucket")
    bucket: str = Field(pattern=r"^[a-z0-9][-a-z0-9]{1,61}[a-z0-9]$", description="of the same project; without dots")
    prefix: BucketFolder = "orch"
    bucket_url: str = ""
    discount: Discount = None

    @property
    def has_sync_api(self) -> bool:
        return True

    @property
    def bucket_address(self) -> str:
        """Address of the bucket, as it appears in the address of an input file."""
        return f"https://{self.bucket}.s3.{self.region}.scw.cloud"

    @field_validator("bucket_url")
    @classmethod
    def _is_a_bucket_url(cls, value: str) -> str:
        return url_of(value, "http://127.0.0.1:9000/bucket") if value else value
