"""Fields that a model at a provider accepts in a request, and their names there. Pure.

A request is built once, in its task's spelling, which is its identity. The dialect changes the line that is written
for a route: it renames and transforms fields, and reports fields that cannot be expressed there.
"""

from orchestrator.policy.dialect.draft import Loss
from orchestrator.policy.dialect.recipient import (
    ANTHROPIC_CHAT,
    UNKNOWN,
    OwnRule,
    Recipient,
    Structured,
    priced_as,
    provider_at,
)
from orchestrator.policy.dialect.writing import Dialect, describe, dialect_of

__all__ = [
    "ANTHROPIC_CHAT",
    "UNKNOWN",
    "Dialect",
    "Loss",
    "OwnRule",
    "Recipient",
    "Structured",
    "describe",
    "dialect_of",
    "priced_as",
    "provider_at",
]
