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

# Anthropic's cap is 256 MB for a whole create request, which is slightly longer than its rows.
PROFILE = Profile(
    "anthropic",
    limits=BatchLimits(max_rows=100_000, max_bytes=240 * MB),
    provider="anthropic",
    endpoints=CHAT_ONLY,
    tells_shards=False,
    one_file=True,
)


class AnthropicPackage(BackendPackage[AnthropicBackend]):
    """Anthropic's Message Batches."""

    kinds = {"anthropic": AnthropicBackend}  # noqa: RUF012

    def profile(self, settings: AnthropicBackend) -> Profile:
        return PROFILE

    def open(self, settings: AnthropicBackend, access: BackendAccess) -> Backend:
        from orchestrator.backends.anthropic.api import AnthropicAPI, headers_of
        from orchestrator.backends.anthropic.batches import AnthropicBatches
        from orchestrator.backends.call_limits import open_client

        silent = settings.request_timeout
        # `stay`: a redirect would carry the custom header with the key to another host.
        client = open_client(f"{settings.base_url.rstrip('/')}/v1", headers_of(access.key), silent, stay=True)
        api = AnthropicAPI(client, access.key, silent)
        return AnthropicBatches(access.name, api, PROFILE, settings.max_tokens, access.root)

    def prompt_cache(self) -> CacheRules:
        from orchestrator.backends.anthropic.cache_rules import RULES

        return RULES

    def rules(self) -> tuple[TableRule, ...]:
        from orchestrator.backends.anthropic.dialect import ANTHROPIC_RULES

        return ANTHROPIC_RULES


PACKAGE = AnthropicPackage()
