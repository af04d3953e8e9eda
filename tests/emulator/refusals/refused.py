"""A request that a provider refuses, in the provider's words, and the small checks that all tables share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from tests.emulator.errors import Json, Problem, Refusal

FORBIDDEN_ARGUMENT = "unsupported_parameter"
FORBIDDEN_VALUE = "unsupported_value"


@dataclass(frozen=True, slots=True)
class Refused:
    """One refusal. `body` is the whole JSON body where the provider does not answer in OpenAI's shape."""

    status: int
    problem: Problem
    body: str | None = None

    @property
    def message(self) -> str:
        return self.problem.message

    def as_refusal(self) -> Refusal:
        """The same, as an error to raise."""
        return Refusal(self.status, self.problem, body=self.body)


Check = Callable[[str, Json], Refused | None]
"""Looks at a model and a request's body."""


def refused(message: str, param: str | None = None, code: str | None = None, status: int = 400) -> Refused:
    """A refusal in OpenAI's shape."""
    return Refused(status, Problem(message, param=param, code=code))


def unsupported(name: str) -> Refused:
    """A field that the model does not take at all."""
    return refused(f"Unsupported parameter: '{name}' is not supported with this model.", name, FORBIDDEN_ARGUMENT)


def unsupported_value(name: str, value: Any, rest: str) -> Refused:
    """A value of a field that the model does not take."""
    shown = f"'{value}'" if isinstance(value, str) else value
    message = f"Unsupported value: '{name}' does not support {shown} with this model. {rest}"
    return refused(message.strip(), name, FORBIDDEN_VALUE)


def out_of_range(name: str, value: Any, least: float, most: float | None = None) -> Refused | None:
    """A number outside its bounds, which no model takes; bounds that are integers belong to an integer."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    kind = "integer" if isinstance(least, int) else "decimal"
    if value < least:
        words, code = f"below minimum value. Expected a value >= {least:g}", f"{kind}_below_min_value"
    elif most is not None and value > most:
        words, code = f"above maximum value. Expected a value <= {most:g}", f"{kind}_above_max_value"
    else:
        return None
    return refused(f"Invalid '{name}': {kind} {words}, but got {value} instead.", name, code)


def first(checks: Iterable[Refused | None]) -> Refused | None:
    """The first refusal, None if all is well."""
    return next((found for found in checks if found is not None), None)


def starts(model: str, prefixes: Collection[str]) -> bool:
    """True if a model's name begins with one of these."""
    return model.startswith(tuple(prefixes))


def wanted(body: Json, name: str, usual: Any = None) -> bool:
    """True if a field is set to something that is not its default."""
    return body.get(name) is not None and body[name] != usual


def text_of(messages: Any) -> str:
    """All text of messages or of an input, to look for a word in it."""
    if isinstance(messages, str):
        return messages
    if isinstance(messages, list):
        return "\n".join(text_of(item) for item in messages)
    if isinstance(messages, dict):
        return "\n".join(text_of(messages.get(name)) for name in ("content", "text"))
    return ""


def roles_of(messages: Any) -> list[str]:
    """The role of each message."""
    found = messages if isinstance(messages, list) else []
    return [str(message.get("role")) for message in found if isinstance(message, dict)]
