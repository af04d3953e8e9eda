"""Signing HTTP clients of the AWS services."""

from __future__ import annotations

import httpx2

from orchestrator.backends import calls
from orchestrator.backends.aws_signature import Signature
from orchestrator.backends.bedrock.api import Services
from orchestrator.backends.bedrock.settings import BedrockBackend
from orchestrator.backends.bedrock.signing import CredentialChain


def services_of(settings: BedrockBackend, chain: CredentialChain) -> Services:
    """Return the clients, at AWS's addresses of the region, or all of them at the settings' base URL."""
    region, bucket, own = settings.region, settings.bucket, settings.base_url
    suffix = f"{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"

    def client(service: str, base_url: str) -> httpx2.Client:
        found = calls.open_client(base_url, {}, settings.request_timeout, stay=True)
        found.auth = Signature(chain.current, service, region)
        return found

    # Certificates cover one label: a bucket with dots goes into the path.
    in_path = f"{own or f'https://s3.{suffix}'}/{bucket}"
    return Services(
        client("bedrock", own or f"https://bedrock.{suffix}"),
        client("s3", in_path if own or "." in bucket else f"https://{bucket}.s3.{suffix}"),
        client("bedrock", own or f"https://bedrock-runtime.{suffix}"),
        client("sts", own or f"https://sts.{suffix}"),
    )
