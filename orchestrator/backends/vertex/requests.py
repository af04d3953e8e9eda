"""Chat completions as requests of Vertex AI's batches: Gemini's, less what its import refuses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.backends.gemini import requests as gemini
from orchestrator.core.errors import InputError


def translate(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request of `generateContent`. Raises InputError for a field without a counterpart."""
    if body.get("cachedContent") is not None:
        raise InputError("batches take no explicit cache", field="cachedContent")
    return gemini.translate(body)
