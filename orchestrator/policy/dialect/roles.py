"""Messages with roles that a model does not take. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.policy.dialect.draft import Draft, Messages


def system_into_question(draft: Draft) -> None:
    """Move system messages into the user's first question."""
    draft.edits.append(_joined)


def _joined(messages: Messages) -> Messages:
    system = [message["content"] for message in messages if message.get("role") in ("system", "developer")]
    others = [message for message in messages if message.get("role") not in ("system", "developer")]
    at = next((number for number, message in enumerate(others) if message.get("role") == "user"), None)
    if not system or at is None:
        return messages
    asked = others[at]
    content = _before(system, asked.get("content"))
    return [*others[:at], {**asked, "content": content}, *others[at + 1 :]]


def _before(system: list[Any], content: Any) -> Any:
    if isinstance(content, str) and all(isinstance(one, str) for one in system):
        return "\n\n".join([*system, content])
    return [part for one in [*system, content] for part in _parts(one)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
