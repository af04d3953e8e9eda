"""A request body while it is converted for a recipient, and the fields lost in the conversion. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from msgspec import Struct, field

from orchestrator.policy.dialect.recipient import Recipient

Messages = list[dict[str, Any]]

MODEL = "model"
NEVER_DROPPED = frozenset(
    {
        "max_tokens", "max_completion_tokens", "max_output_tokens", "store", "response_format", "text", "dimensions",
        MODEL,
    }
)  # fmt: skip
"""Fields that are never left out. They limit the cost, keep a text private, set the answer's form or name the
model.
"""


class Loss(Struct, frozen=True):
    """A field of a request that its recipient does not accept, and why.

    `field` is its name in the task's spelling.
    """

    field: str
    reason: str

    @property
    def may_be_taken_out(self) -> bool:
        """True if a task could be sent without the field. Only the model is required."""
        return self.field != MODEL

    @property
    def may_be_dropped(self) -> bool:
        """True if a task may allow orch to leave the field out."""
        return self.field not in NEVER_DROPPED


class Draft(Struct):
    """A body's fields without its messages. The rules for `model` at `recipient` change them.

    `name` is the recipient's name for the model. `edits` change the messages. `losses` has every refused field; with
    `drop`, the field is also left out if this is allowed.
    """

    fields: dict[str, Any]
    model: str
    recipient: Recipient
    endpoint: str
    name: str = ""
    drop: bool = False
    losses: list[Loss] = field(default_factory=list)
    edits: list[Callable[[Messages], Messages]] = field(default_factory=list)

    def lose(self, name: str, why: str) -> None:
        """Note that the recipient refuses a field. With `drop`, leave the field out if allowed."""
        loss = Loss(name, f"{self.name or self.model} {why}")
        if loss not in self.losses:
            self.losses.append(loss)
        if self.drop and loss.may_be_dropped:
            self.fields.pop(name, None)

    def rename(self, name: str, to: str) -> None:
        """Rename a field. If the body already has a field with the new name, that field's value is kept."""
        if name in self.fields:
            value = self.fields.pop(name)
            self.fields.setdefault(to, value)


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def named(value: Any, name: str) -> Any:
    """Return a member of a JSON object; None if `value` is not an object or lacks the member."""
    return value.get(name) if isinstance(value, Mapping) else None


def system_into_question(draft: Draft) -> None:
    """Move the text of system messages into the user's first message."""
    draft.edits.append(_join_system)


def _join_system(messages: Messages) -> Messages:
    system = [message["content"] for message in messages if message.get("role") in ("system", "developer")]
    others = [message for message in messages if message.get("role") not in ("system", "developer")]
    at = next((number for number, message in enumerate(others) if message.get("role") == "user"), None)
    if not system or at is None:
        return messages
    question = others[at]
    content = _prepend(system, question.get("content"))
    return [*others[:at], {**question, "content": content}, *others[at + 1 :]]


def _prepend(system: list[Any], content: Any) -> Any:
    if isinstance(content, str) and all(isinstance(one, str) for one in system):
        return "\n\n".join([*system, content])
    return [part for one in [*system, content] for part in _parts(one)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
