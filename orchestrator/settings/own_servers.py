"""The backends of orch.toml, and the hourly costs of our own servers. A light module, for read-only commands.

This module checks no settings. `config` does, but importing its libraries takes four times as long as listing jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator.settings.discovery import parsed, small_text


def hourly_costs(path: Path | None) -> dict[str, Decimal | None] | None:
    """Return the dollars per hour of each backend; 0 if our own server is free or paid by the token.

    The value is None for a provider's Batch API. Returns None if the file cannot be read.
    """
    if path is None:
        return {}
    try:
        return {name: _of_hour(backend) for name, backend in parsed(small_text(path)).get("backends", {}).items()}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError, ArithmeticError):
        return None


def _of_hour(backend: Mapping[str, Any]) -> Decimal | None:
    match backend.get("kind", "local"):
        case "local":
            return Decimal(0) if backend.get("idle") else _dollars(backend)
        case "engines":
            return _dollars(backend)
        case "ray":
            return max(map(_dollars, backend["models"].values()))
        case "sync":
            return Decimal(0)
    return None


def _dollars(part: Mapping[str, Any]) -> Decimal:
    cost = Decimal(str(part["cost_per_hour"]))
    if not cost.is_finite() or cost < 0:
        raise ValueError(f"an hour costs {cost}")
    return cost
