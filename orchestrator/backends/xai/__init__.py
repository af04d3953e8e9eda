"""xAI's Batch API."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, DAY, MB, BatchLimits, Profile
from orchestrator.backends.xai.settings import XaiBackend

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# xAI's guide: one batch may be created per second, and more than 100,000 requests may be throttled. Its reference of
# files: 50 MB, kept for up to 30 days on request. A discount is 20 to 50 %, by model; the smallest one holds for
# every model.
PROFILE = Profile(
    "xai",
    limits=BatchLimits(max_rows=100_000, max_bytes=50 * MB, batches_per_hour=3_600),
    provider="x-ai",
    discount=Decimal("0.2"),
    overruns=True,
    expires_after=30 * DAY,
    endpoints=CHAT_ONLY,
    one_file=True,
)


class XaiPackage(BackendPackage[XaiBackend]):
    """xAI's Batch API. Files and lines have OpenAI's shape; results come in pages; counts replace a status."""

    kinds = {"xai": XaiBackend}  # noqa: RUF012

    def profile(self, settings: XaiBackend) -> Profile:
        return PROFILE

    def open(self, settings: XaiBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.batches import ApiBatches
        from orchestrator.backends.xai.api import XaiAPI

        silent = settings.request_timeout
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        return ApiBatches(access.name, XaiAPI(client, access.key, silent), PROFILE)


PACKAGE = XaiPackage()
