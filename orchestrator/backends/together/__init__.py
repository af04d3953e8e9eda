"""Together's Batch API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, MB, BatchLimits, Profile
from orchestrator.backends.together.settings import TogetherBackend

if TYPE_CHECKING:
    from orchestrator.backends import Backend

# docs.together.ai, 2026-11: the window is always 24 hours, as a goal. Except for audio endpoints, batches are chats.
# Few models have a discount.
PROFILE = Profile(
    "together",
    limits=BatchLimits(max_bytes=100 * MB, enqueued_tokens={"": 30_000_000_000}),
    provider="together",
    discount=None,
    overruns=True,
    endpoints=CHAT_ONLY,
    names_homes=True,
)


class TogetherPackage(BackendPackage[TogetherBackend]):
    """Together's Batch API, whose protocol is close to OpenAI's."""

    kinds = {"together": TogetherBackend}  # noqa: RUF012

    def profile(self, settings: TogetherBackend) -> Profile:
        return replace(PROFILE, discount=settings.discount)

    def open(self, settings: TogetherBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.body_lines import sent_line
        from orchestrator.backends.together.api import TogetherAPI, TogetherBatches

        silent = settings.request_timeout
        client = call_limits.bearer_client(settings.base_url, access.key, silent)
        api = TogetherAPI(client, access.key, silent)
        return TogetherBatches(access.name, api, self.profile(settings), sent=sent_line)


PACKAGE = TogetherPackage()
