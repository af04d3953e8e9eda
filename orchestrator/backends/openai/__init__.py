"""OpenAI's Batch API and compatible providers; also the protocol of our own server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.backends.openai.profiles import profile_of
from orchestrator.backends.openai.settings import OpenAIBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import Profile

if TYPE_CHECKING:
    from orchestrator.backends import Backend

_UNNAMED = "other"


class OpenAIPackage(BackendPackage[OpenAIBackend]):
    """OpenAI's Batch API and compatible providers."""

    kinds = {"openai": OpenAIBackend, "azure": OpenAIBackend}  # noqa: RUF012

    def profile(self, settings: OpenAIBackend) -> Profile:
        known = profile_of(settings.kind, settings.base_url, settings.profile)
        return replace(
            known,
            windows=known.windows if settings.windows is None else settings.windows,
            provider=settings.provider or known.provider,
            discount=known.discount if settings.discount is None else settings.discount,
        )

    def open(self, settings: OpenAIBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends import call_limits
        from orchestrator.backends.batches import ApiBatches
        from orchestrator.backends.openai_http import HttpAPI

        profile, silent = self.profile(settings), settings.request_timeout
        sent = {
            "Authorization": f"Bearer {access.key}" if access.key else None,
            "OpenAI-Organization": settings.organization,
            "OpenAI-Project": settings.project,
        }
        headers = {name: value for name, value in sent.items() if value is not None}
        api = HttpAPI(
            call_limits.open_client(settings.base_url, headers, silent), access.key, silent, settings.project
        )
        extra = dict(profile.create_fields) | ({"include_provenance": True} if profile.is_orch else {})
        return ApiBatches(access.name, api, profile, extra)

    def recipient(self, settings: OpenAIBackend) -> str:
        from orchestrator.policy.dialect import provider_at

        known = self.profile(settings).name
        return provider_at(settings.base_url, settings.provider) if known == _UNNAMED else known


PACKAGE = OpenAIPackage()
