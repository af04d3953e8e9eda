"""Which fields a model at a provider accepts in a request, and how they are spelled there. Pure.

A request is built once, in the spelling of its task, and keeps that as its identity. The dialect acts on the line
that is written for a route: it renames, transforms or reports what cannot be expressed there.
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
