"""Scaleway's Batches API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import MB, BatchLimits, Profile
from orchestrator.backends.scaleway.settings import ScalewayBackend

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# scaleway/docs-content 773e5de (use-batch-processing): a batch is terminated after 24 hours; rate-limits page: no
# rate limits, half price. No page that we could read describes a call to end a batch.
PROFILE = Profile(
    "scaleway",
    limits=BatchLimits(max_bytes=200 * MB),
    endpoints=frozenset({"/v1/chat/completions", "/v1/responses", "/v1/embeddings"}),
    names_homes=True,
    cancels=False,
)


class ScalewayPackage(BackendPackage[ScalewayBackend]):
    """Scaleway's batches, which read and write files in a bucket."""

    kinds = {"scaleway": ScalewayBackend}  # noqa: RUF012

    def profile(self, settings: ScalewayBackend) -> Profile:
        return PROFILE if settings.discount is None else replace(PROFILE, discount=settings.discount)

    def open(self, settings: ScalewayBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.aws_signature import AwsKeys, Signature
        from orchestrator.backends.buckets import BucketPrefix, WithBucket
        from orchestrator.backends.scaleway.api import ScalewayAPI

        silent, keys = settings.request_timeout, AwsKeys(settings.access_key, access.key)
        bucket = call_limits.open_client(settings.bucket_url or settings.bucket_address, {}, silent, stay=True)
        bucket.auth = Signature(lambda: keys, "s3", settings.region)
        place = BucketPrefix(settings.bucket, settings.prefix)
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        api = ScalewayAPI(client, access.key, silent, bucket, place, settings.bucket_address)
        role = "Scaleway's application"
        return WithBucket(access.name, api, self.profile(settings), bucket=settings.bucket, role=role)


PACKAGE = ScalewayPackage()
