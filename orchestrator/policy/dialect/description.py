"""Describes in words how a model's accepted fields differ from a task's spelling. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.policy.dialect.recipient import Recipient
from orchestrator.policy.dialect.rules import CHAT, EMBEDDINGS
from orchestrator.policy.dialect.writing import dialect_of

_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}}
# One value for each of a task's settings that is not any model's default.
_SETTINGS: dict[str, Any] = {"temperature": 0.5, "top_p": 0.5, "seed": 7, "stop": ["."], "logprobs": True}


def describe(recipient: Recipient, model: str) -> str | None:
    """Describe in one line how a model differs from a task's spelling; None if it takes all as it is."""
    dialect = dialect_of(recipient, model, CHAT)
    said = [] if dialect.endpoint == CHAT else [f"asked at {dialect.endpoint}"]
    if elsewhere := dialect.losses({}):
        at_vectors = dialect_of(recipient, model, EMBEDDINGS).losses({"dimensions": 8})
        sizes = ["takes no dimensions"] if any(loss.field == "dimensions" for loss in at_vectors) else []
        return "; ".join([elsewhere[0].reason, *sizes])
    lost = [name for name, value in _SETTINGS.items() if dialect.losses({name: value})]
    if lost:
        said.append(f"takes no {', '.join(lost)}")
    bounds = dialect.body({"max_tokens": 100})
    said += [f"max_tokens is sent as {name}" for name in bounds if name.startswith("max_") and name != "max_tokens"]
    asked = dialect.body({"messages": [{"role": "user", "content": ""}], "response_format": _FORMAT})
    kind = (asked.get("response_format") or (asked.get("text") or {}).get("format") or {}).get("type")
    if kind != "json_schema":
        said.append("schemas are sent in the prompt")
    return "; ".join(said) or None
