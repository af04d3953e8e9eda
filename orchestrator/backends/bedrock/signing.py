"""AWS credentials from boto3's chain, and requests signed with them.

botocore finds credentials and signs; httpx2 sends, with our limits of time. anthropic's client for Bedrock does so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from urllib.parse import urlsplit

import boto3
import httpx2
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError

from orchestrator.backends.bedrock.answers import BAD_CREDENTIALS
from orchestrator.backends.openai.api import ApiRefusal

DIGEST = "x-amz-content-sha256"


class CredentialChain:
    """The credentials that boto3's chain finds for a profile; looked for at the first request."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._session: boto3.Session | None = None

    def current(self) -> ReadOnlyCredentials:
        """Return credentials, renewed if they end soon. Raises ApiRefusal without credentials."""
        try:
            if self._session is None:
                self._session = boto3.Session(profile_name=self._profile)
            found = self._session.get_credentials()
            if found is not None:
                frozen: ReadOnlyCredentials = found.get_frozen_credentials()
                return frozen
            why = "boto3's chain finds no AWS credentials"
        except BotoCoreError as error:
            why = f"AWS credentials cannot be had: {error}"
        self._session = None
        raise ApiRefusal(BAD_CREDENTIALS, httpx2.Headers(), "", {"message": why, "code": "no_credentials"})

    def forget(self) -> None:
        """Read files and variables again before the next request: somebody may have renewed what they hold."""
        self._session = None


class Signature(httpx2.Auth):
    """Signs each request for one AWS service."""

    def __init__(self, chain: CredentialChain, service: str, region: str) -> None:
        self._chain, self._service, self._region = chain, service, region

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # type: ignore[override]
        if DIGEST not in request.headers:
            request.headers[DIGEST] = sha256(request.read()).hexdigest()
        signed = AWSRequest(request.method, str(request.url), headers=_signed_headers(request))
        SigV4Auth(self._chain.current(), self._service, self._region).add_auth(signed)
        for name, value in signed.headers.items():
            request.headers[name] = value
        yield request


def _signed_headers(request: httpx2.Request) -> Mapping[str, str]:
    names = (name for name in request.headers if name.startswith("x-amz-") or name == "content-type")
    mine = {name: request.headers[name] for name in names}
    return {"host": urlsplit(str(request.url)).netloc, **mine}
