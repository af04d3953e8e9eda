"""AWS credentials from boto3's chain."""

from __future__ import annotations

import boto3
import httpx2
from botocore.exceptions import BotoCoreError

from orchestrator.backends.api import ApiRefusal
from orchestrator.backends.aws_signature import AwsKeys
from orchestrator.backends.s3_files import BAD_CREDENTIALS


class CredentialChain:
    """The credentials that boto3's chain finds for a profile; looked for at the first request."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._session: boto3.Session | None = None

    def current(self) -> AwsKeys:
        """Return credentials, renewed if they end soon. Raises ApiRefusal without credentials."""
        try:
            if self._session is None:
                self._session = boto3.Session(profile_name=self._profile)
            found = self._session.get_credentials()
            if found is not None:
                frozen = found.get_frozen_credentials()
                return AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)
            why = "boto3's chain finds no AWS credentials"
        except BotoCoreError as error:
            why = f"AWS credentials cannot be had: {error}"
        self._session = None
        raise ApiRefusal(BAD_CREDENTIALS, httpx2.Headers(), "", {"message": why, "code": "no_credentials"})

    def forget(self) -> None:
        """Read files and variables again before the next request: somebody may have renewed what they hold."""
        self._session = None
