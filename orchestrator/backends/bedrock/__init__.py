"""Amazon Bedrock's batch inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.backends.bedrock.settings import BedrockBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, GB, BatchLimits, Profile, with_limits
from orchestrator.core.errors import UsageError
from orchestrator.core.extras import install_line

if TYPE_CHECKING:
    from orchestrator.backends import Backend
    from orchestrator.policy.dialect.rules import TableRule

# Quotas differ by model and account; these are AWS's defaults. A job expires after the requested time, from 24 to 168
# hours. An unanswered create is repeated with the same token, so orch need not wait for its batch to appear.
PROFILE = Profile(
    "bedrock",
    windows=("24h", "48h", "72h", "96h", "120h", "144h", "7d"),
    limits=BatchLimits(min_rows=100, max_rows=50_000, max_bytes=GB),
    provider="aws",
    endpoints=CHAT_ONLY,
    appear_seconds=0.0,
    one_file=True,
)


class BedrockPackage(BackendPackage[BedrockBackend]):
    """Amazon Bedrock's batch jobs, which read and write files in a bucket."""

    kinds = {"bedrock": BedrockBackend}  # noqa: RUF012

    def profile(self, settings: BedrockBackend) -> Profile:
        return PROFILE if settings.discount is None else replace(PROFILE, discount=settings.discount)

    def open(self, settings: BedrockBackend, access: BackendAccess) -> Backend:
        try:
            import boto3  # noqa: F401
        except ImportError:
            hint = install_line("bedrock")
            raise UsageError(f"backend {access.name} needs the extra `bedrock`", hint=hint) from None

        from orchestrator.backends.bedrock.api import BedrockAPI
        from orchestrator.backends.bedrock.batches import BedrockBatches
        from orchestrator.backends.bedrock.clients import CredentialChain, services_of
        from orchestrator.backends.buckets import BucketPrefix

        chain = CredentialChain(settings.aws_profile)
        place = BucketPrefix(settings.bucket, settings.prefix)
        api = BedrockAPI(services_of(settings, chain), chain, place, settings.role_arn, settings.request_timeout)
        profile = replace(PROFILE, limits=with_limits(PROFILE, **settings.limits.model_dump()))
        return BedrockBatches(access.name, api, profile, settings)

    def rules(self) -> tuple[TableRule, ...]:
        from orchestrator.backends.bedrock.dialect import BEDROCK_RULES

        return BEDROCK_RULES


PACKAGE = BedrockPackage()
