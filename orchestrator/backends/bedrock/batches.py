"""Batch operations on Bedrock's jobs. The account is identified by its number."""

from __future__ import annotations

from pathlib import Path

from orchestrator.backends.bedrock.api import BedrockAPI
from orchestrator.backends.bedrock.requests import sent_line, translate
from orchestrator.backends.bedrock.settings import BedrockBackend
from orchestrator.backends.buckets import WithBucket
from orchestrator.backends.profiles import Profile
from orchestrator.backends.translated import TranslatedBatches
from orchestrator.core.errors import AccountError


class BedrockBatches(WithBucket, TranslatedBatches):
    """The operations of a Batch API on Bedrock's calls."""

    def __init__(self, name: str, api: BedrockAPI, profile: Profile, settings: BedrockBackend) -> None:
        more = {"translate": translate, "sent": sent_line}
        super().__init__(name, api, profile, bucket=settings.bucket, role="the role", **more)
        self._bedrock, self._settings = api, settings

    def account(self) -> str:
        """Return the credentials' account, with the region. Raises AccountError if the role is in another account."""
        if self._account is None:
            with self._translated("ask whose credentials these are"):
                number = self._bedrock.caller()
            if number != self._settings.account:
                raise AccountError(
                    f"{self._name}: the credentials belong to account {number}, role_arn to {self._settings.account}",
                    status=None,
                    code="other_account",
                    hint="set `aws_profile` or `role_arn`, so that both name one account",
                )
            self._account = f"aws:{number}/{self._settings.region}"
        return self._account

    def upload(self, path: Path, name: str) -> str:
        self.account()
        return super().upload(path, name)
