"""Anthropic's prompt cache: its lives, and the least prefix that each model caches.

Source: platform.claude.com/docs/en/build-with-claude/prompt-caching, and what anthropic-sdk-python#1194 reports of
Sonnet 4.6. Rows of a batch do not read what others of it write: bike4mind#2741.
"""

from __future__ import annotations

import re

from orchestrator.policy.prompt_cache import CacheLife, CacheRules

_NEW = re.compile(r"(opus|sonnet|haiku)-(\d{1,2})(?:[.-](\d{1,2}))?(?!\d)")
_OLD = re.compile(r"claude-(\d)(?:[.-](\d))?-(opus|sonnet|haiku)")
_MOST = 4096


def least_tokens(model: str) -> int:
    """Return the fewest tokens of a prefix that a model caches; for unknown names, the most that any model wants."""
    if (found := _NEW.search(model)) is not None:
        family, version = found[1], (int(found[2]), int(found[3] or 0))
    elif (found := _OLD.search(model)) is not None:
        family, version = found[3], (int(found[1]), int(found[2] or 0))
    else:
        return _MOST
    if family == "haiku":
        return 2048 if version < (4, 0) else _MOST
    if version < (4, 5) or (family == "sonnet" and version < (4, 6)):
        return 1024
    return 2048 if family == "sonnet" and version < (5, 0) else _MOST


RULES = CacheRules(least_tokens, (CacheLife("5m", 300.0), CacheLife("1h", 3600.0)))
