"""AWS credentials and settings for the emulated provider, as a user has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.backends.bedrock.settings import BedrockBackend
from tests.emulator.aws_wire import REGION, role_of, secret_of

BUCKET = "night-batches"


def aws_environment(key: str, folder: Path) -> Mapping[str, str]:
    """What leads boto3 to these credentials, and to no others of this machine."""
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret_of(key),
        "AWS_CONFIG_FILE": str(folder / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def bedrock_told(base_url: str, key: str, **more: Any) -> dict[str, Any]:
    """What orch.toml says of a backend in the account of a key."""
    facts = {"kind": "bedrock", "base_url": base_url, "region": REGION, "bucket": BUCKET, "role_arn": role_of(key)}
    return {**facts, **more}


def bedrock_settings(base_url: str, key: str, **more: Any) -> BedrockBackend:
    return BedrockBackend.model_validate(bedrock_told(base_url, key, **more))
