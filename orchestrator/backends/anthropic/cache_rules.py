"""Anthropic's prompt cache: its lifetimes, and the shortest prefix that each model caches.

`policy.prompt_cache` uses these rules to choose the prefixes to mark. A row never reads a cache entry that another
row of the same batch writes (bike4mind#2741).

Sources: platform.claude.com/docs/en/build-with-claude/prompt-caching, anthropic-sdk-python#1194 for Sonnet 4.6.
"""

from __future__ import annotations

from orchestrator.policy.dialect.families import claude_of
from orchestrator.policy.prompt_cache import CacheLife, CacheRules

_MOST = 4096


def least_tokens(model: str) -> int:
    """Return the tokens of the shortest prefix that a model caches; the highest minimum for an unknown model."""
    claude = claude_of(model)
    if claude is None or claude.line not in ("opus", "sonnet", "haiku"):
        return _MOST
    if claude.line == "haiku":
        return 2048 if claude.version < (4, 0) else _MOST
    if not claude.since(opus=(4, 5), sonnet=(4, 6)):
        return 1024
    return 2048 if claude.line == "sonnet" and claude.version < (5, 0) else _MOST


RULES = CacheRules(least_tokens, (CacheLife("5m", 300.0), CacheLife("1h", 3600.0)))
