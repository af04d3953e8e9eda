"""OpenRouter's Batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.openrouter.settings import OpenRouterBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, MB, BatchLimits, Profile

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# OpenRouter's guide: 5,000 requests and 200 MB a batch, where the batch is slightly longer than its rows. A batch
# takes 24 hours at most providers, 96 at Google Vertex, and usually costs half.
PROFILE = Profile(
    "openrouter",
    limits=BatchLimits(max_rows=5_000, max_bytes=190 * MB),
    provider="openrouter",
    overruns=True,
    endpoints=CHAT_ONLY,
    tells_shards=False,
    cancels=False,
    one_file=True,
)


class OpenRouterPackage(BackendPackage[OpenRouterBackend]):
    """OpenRouter's Batch API, with inline requests and results, and without metadata or a cancel call."""

    kinds = {"openrouter": OpenRouterBackend}  # noqa: RUF012

    def profile(self, settings: OpenRouterBackend) -> Profile:
        return PROFILE

    def open(self, settings: OpenRouterBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.inline_batches import InlineBatches
        from orchestrator.backends.openrouter.api import OpenRouterAPI, without_model

        silent = settings.request_timeout
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        api = OpenRouterAPI(client, access.key, silent)
        return InlineBatches(access.name, api, PROFILE, without_model, "body", access.root)


PACKAGE = OpenRouterPackage()
