"""Settings of Gemini's batches in orch.toml."""

from __future__ import annotations

from typing import Literal

from orchestrator.settings.backends import NotifyingBackend


class GeminiBackend(NotifyingBackend):
    """Gemini's Batch API, with a key from Google AI Studio."""

    kind: Literal["gemini"]
    base_url: str = "https://generativelanguage.googleapis.com/v1beta"
