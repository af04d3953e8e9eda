"""Settings of Amazon Bedrock's batch inference in orch.toml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from orchestrator.settings.backends import BucketFolder, Discount, HostedBackend, url_of


def _no_key(value: Any) -> None:
    raise ValueError("AWS has no single key: name a profile in `aws_profile`, or leave that to boto3's own chain")


class BedrockBackend(HostedBackend):
    """Bedrock's batch inference, with input and output in a bucket.

    `role_arn` is the service role that reads and writes the bucket. `base_url` replaces the addresses of all AWS
    services. Without `aws_profile`, boto3 uses its standard credential chain.
    """

    kind: Literal["bedrock"]
    base_url: str = ""
    api_key_env: Annotated[None, BeforeValidator(_no_key)] = None
    region: str = Field(pattern=r"^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$", description="such as us-east-1")
    bucket: str = Field(pattern=r"^[a-z0-9][-.a-z0-9]{1,61}[a-z0-9]$", description="of the role's account")
    prefix: BucketFolder = "orch"
    role_arn: str = Field(pattern=r"^arn:aws(-[^:]+)?:iam::[0-9]{12}:role/.+$", max_length=2048)
    aws_profile: str | None = Field(None, min_length=1, description="of ~/.aws/config")
    discount: Discount = None

    @property
    def account(self) -> str:
        """AWS account number, taken from the role's ARN."""
        return self.role_arn.split(":")[4]

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        return url_of(value, "http://127.0.0.1:4566")
