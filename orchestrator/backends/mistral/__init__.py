"""Mistral's batch jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.mistral.settings import MistralBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import MB, BatchLimits, Profile

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# Mistral's guide says a million rows, its limitations page 100,000 (both read in 2026-11). A job may take 7 days.
PROFILE = Profile(
    "mistral",
    windows=("24h", "48h", "72h", "96h", "120h", "144h", "7d"),
    limits=BatchLimits(max_rows=100_000, max_bytes=512 * MB),
    provider="mistral",
    endpoints=frozenset({"/v1/chat/completions", "/v1/embeddings"}),
)


class MistralPackage(BackendPackage[MistralBackend]):
    """Mistral's batch jobs, whose files and answers are close to OpenAI's format."""

    kinds = {"mistral": MistralBackend}  # noqa: RUF012

    def profile(self, settings: MistralBackend) -> Profile:
        return PROFILE

    def open(self, settings: MistralBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.batches import ApiBatches
        from orchestrator.backends.body_lines import sent_line
        from orchestrator.backends.mistral.api import MistralAPI

        silent = settings.request_timeout
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        api = MistralAPI(client, access.key, silent)
        return ApiBatches(access.name, api, PROFILE, sent=sent_line)


PACKAGE = MistralPackage()
