"""Signing HTTP clients of the AWS services, with credentials from boto3's chain."""

from __future__ import annotations

import boto3
import httpx2
from botocore.exceptions import BotoCoreError
from msgspec import Struct

from orchestrator.backends import call_limits
from orchestrator.backends.api import ApiRefusal
from orchestrator.backends.aws_signature import AwsKeys, Signature
from orchestrator.backends.bedrock.settings import BedrockBackend
from orchestrator.backends.s3_files import BAD_CREDENTIALS


class Services(Struct, frozen=True):
    """A signing client for each AWS service. Each base URL ends with the service, the bucket's URL with the bucket's
    name.
    """

    bedrock: httpx2.Client
    bucket: httpx2.Client
    runtime: httpx2.Client
    sts: httpx2.Client


class CredentialChain:
    """AWS credentials for a profile, from boto3's chain. The chain is set up at the first request."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._session: boto3.Session | None = None

    def current(self) -> AwsKeys:
        """Return credentials, renewed if they expire soon. Raises ApiRefusal if there are no credentials."""
        try:
            if self._session is None:
                self._session = boto3.Session(profile_name=self._profile)
            found = self._session.get_credentials()
            if found is not None:
                frozen = found.get_frozen_credentials()
                return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)
            why = "boto3's chain finds no AWS credentials"
        except BotoCoreError as error:
            why = f"cannot get AWS credentials: {error}"
        self._session = None
        raise ApiRefusal(BAD_CREDENTIALS, httpx2.Headers(), "", {"message": why, "code": "no_credentials"})

    def forget(self) -> None:
        """Discard the credentials, so that the next request reads files and variables again.

        A user may have renewed them.
        """
        self._session = None


def services_of(settings: BedrockBackend, chain: CredentialChain) -> Services:
    """Return the clients, at AWS's addresses in the region or at the settings' base URL if set."""
    region, bucket, own = settings.region, settings.bucket, settings.base_url
    suffix = f"{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"

    def client(service: str, base_url: str) -> httpx2.Client:
        found = call_limits.open_client(base_url, {}, settings.request_timeout, stay=True)
        found.auth = Signature(chain.current, service, region)
        return found

    # A certificate covers only one label, so a bucket name with dots goes into the path.
    in_path = f"{own or f'https://s3.{suffix}'}/{bucket}"
    return Services(
        client("bedrock", own or f"https://bedrock.{suffix}"),
        client("s3", in_path if own or "." in bucket else f"https://{bucket}.s3.{suffix}"),
        client("bedrock", own or f"https://bedrock-runtime.{suffix}"),
        client("sts", own or f"https://sts.{suffix}"),
    )
