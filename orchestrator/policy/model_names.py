"""Model aliases, backends' names for models, and conversion of request lines to another model."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from orchestrator.core.request_lines import raw_line


def with_model(line: bytes, model: str) -> bytes:
    """Return a request line with another model."""
    parsed = raw_line(line)
    parsed.body["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(parsed)


def resolve_model(alias: str, backend: str, models: Mapping[str, str | Mapping[str, str]]) -> str | None:
    """Return a backend's name for a model, or None if the alias has no name at that backend."""
    found = models.get(alias)
    if found is None:
        return None
    return found if isinstance(found, str) else found.get(backend)
