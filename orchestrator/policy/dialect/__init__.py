"""Request fields that a provider's model accepts, and the provider's names for them. Pure.

A request is built and identified once, in its task's spelling. For each route, the dialect renames and converts the
fields of the written line, and reports fields that the recipient cannot express.
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
