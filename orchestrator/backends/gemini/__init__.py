"""Gemini's Batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.gemini.settings import GeminiBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, GB, BatchLimits, Profile

if TYPE_CHECKING:
    from orchestrator.backends import Backend
    from orchestrator.policy.dialect.rules import TableRule

# Google's pages state 2 GB for a file and no row limit. Ours exists because orch holds a batch's ids in memory while
# collecting. A batch expires after 48 hours, whatever window the create requests.
PROFILE = Profile(
    "gemini",
    windows=("48h",),
    limits=BatchLimits(max_rows=200_000, max_bytes=2 * GB),
    provider="google",
    endpoints=CHAT_ONLY,
    reads_inputs=False,
    one_file=True,
)


class GeminiPackage(BackendPackage[GeminiBackend]):
    """Gemini's Batch API: batches of uploaded files, whose results are matched by key."""

    kinds = {"gemini": GeminiBackend}  # noqa: RUF012

    def profile(self, settings: GeminiBackend) -> Profile:
        return PROFILE

    def open(self, settings: GeminiBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.gemini.api import GeminiAPI
        from orchestrator.backends.gemini.requests import translate
        from orchestrator.backends.translated import TranslatedBatches

        silent = settings.request_timeout
        # `stay`: a redirect would carry the custom header with the key to another host.
        client = call_limits.open_client(settings.base_url, {"x-goog-api-key": access.key}, silent, stay=True)
        return TranslatedBatches(access.name, GeminiAPI(client, access.key, silent), PROFILE, translate)

    def rules(self) -> tuple[TableRule, ...]:
        from orchestrator.backends.gemini.dialect import GEMINI_RULES

        return GEMINI_RULES


PACKAGE = GeminiPackage()
