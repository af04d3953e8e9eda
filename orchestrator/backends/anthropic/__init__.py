"""Anthropic's Message Batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.backends.anthropic.settings import AnthropicBackend
from orchestrator.backends.package import BackendAccess, BackendPackage
from orchestrator.backends.profiles import CHAT_ONLY, MB, BatchLimits, Profile

if TYPE_CHECKING:
    from orchestrator.backends import Backend
    from orchestrator.policy.dialect.rules import TableRule
    from orchestrator.policy.prompt_cache import CacheRules

# Its cap is 256 MB for a request, which may be slightly longer than its rows.
PROFILE = Profile(
    "anthropic",
    limits=BatchLimits(max_rows=100_000, max_bytes=240 * MB),
    provider="anthropic",
    endpoints=CHAT_ONLY,
    tells_shards=False,
)


class AnthropicPackage(BackendPackage[AnthropicBackend]):
    """Anthropic's Message Batches."""

    kinds = {"anthropic": AnthropicBackend}  # noqa: RUF012

    def profile(self, settings: AnthropicBackend) -> Profile:
        return PROFILE

    def open(self, settings: AnthropicBackend, access: BackendAccess) -> Backend:
        import anthropic

        from orchestrator.backends import calls
        from orchestrator.backends.anthropic.batches import AnthropicBatches

        silent = settings.request_timeout
        timeout = calls.timeouts(min(silent, calls.QUIET_SECONDS))
        # The header from the API's documentation; clients from 2.12 on send another one by default.
        headers = {"x-api-key": access.key}
        client = anthropic.Anthropic(
            api_key=access.key,
            base_url=settings.base_url,
            timeout=timeout,
            # A client that retries by itself would sleep as long as the server asks, and block everything else.
            max_retries=0,
            default_headers=headers,
            # A custom header goes along to any redirect.
            http_client=calls.bounded(
                anthropic.DefaultHttpxClient(timeout=timeout, verify=calls.certificates()), stay=True
            ),
        )
        return AnthropicBatches(access.name, client, settings.max_tokens, silent, access.root)

    def prompt_cache(self) -> CacheRules:
        from orchestrator.backends.anthropic.caching import RULES

        return RULES

    def rules(self) -> tuple[TableRule, ...]:
        from orchestrator.backends.anthropic.rules import ANTHROPIC_RULES

        return ANTHROPIC_RULES


PACKAGE = AnthropicPackage()
