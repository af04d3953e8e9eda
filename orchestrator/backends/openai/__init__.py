"""OpenAI's Batch API, and providers that follow it; also the protocol of our own server."""

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
    """OpenAI's Batch API, and providers that follow it."""

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
        import openai

        from orchestrator.backends import calls
        from orchestrator.backends.batches import ApiBatches
        from orchestrator.backends.openai.sdk import SdkAPI

        profile = self.profile(settings)
        silent = settings.request_timeout
        timeout = calls.timeouts(min(silent, calls.QUIET_SECONDS))
        client = openai.OpenAI(
            api_key=access.key,
            base_url=settings.base_url,
            timeout=timeout,
            # A client that retries by itself would sleep as long as the server asks, and block everything else.
            max_retries=0,
            http_client=calls.bounded(openai.DefaultHttpxClient(timeout=timeout, verify=calls.certificates())),
        )
        # By default the client reads these from the environment, and would send OpenAI's to any address.
        client.organization, client.project = settings.organization, settings.project
        extra = dict(profile.create_fields) | ({"include_provenance": True} if profile.is_orch else {})
        return ApiBatches(access.name, SdkAPI(client, silent), profile, extra)

    def recipient(self, settings: OpenAIBackend) -> str:
        from orchestrator.policy.dialect import provider_at

        known = self.profile(settings).name
        return provider_at(settings.base_url, settings.provider) if known == _UNNAMED else known


PACKAGE = OpenAIPackage()
