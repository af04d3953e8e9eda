"""Kinds of rules in `rules_by_model` and in the tables of backends. Each kind changes a draft. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from msgspec import Struct

from orchestrator.policy.dialect.draft import MODEL, Draft, is_number, named
from orchestrator.policy.dialect.families import plain_name

Condition = Callable[[Draft], bool]
NEUTRAL: Mapping[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "logprobs": False,
    "top_logprobs": 0,
    "n": 1,
    "stream": False,
    "modalities": ["text"],
    "verbosity": "medium",
}
"""Default values of fields. A field with its default value can be left out without effect."""


class Change(Protocol):
    """The action of a rule on a draft."""

    def apply(self, draft: Draft) -> None:
        """Change the draft, or note a loss."""


class TableRule(Struct, frozen=True):
    """A change for the models that match the regular expression `models` at `providers`.

    `read` is the date on which `source` was read. The rule applies only at `endpoints` (empty: all), and only to
    drafts for which `when` is true (None: all).
    """

    providers: Collection[str]
    models: str
    change: Change
    source: str
    read: str = "2026-11-26"
    endpoints: Collection[str] = ()
    when: Condition | None = None

    def holds_for(self, provider: str, model: str) -> bool:
        """Return True if the rule applies to a model at a provider."""
        return provider in self.providers and re.match(self.models, plain_name(model)) is not None

    def apply(self, draft: Draft) -> None:
        """Apply the change if the draft meets `endpoints` and `when`. The caller has already checked `holds_for`."""
        if self.endpoints and draft.endpoint not in self.endpoints:
            return
        if self.when is None or self.when(draft):
            self.change.apply(draft)


class Renamed(Struct, frozen=True):
    """The recipient's name for the field `field` is `to`."""

    field: str
    to: str

    def apply(self, draft: Draft) -> None:
        draft.rename(self.field, self.to)


class NotTaken(Struct, frozen=True):
    """The recipient refuses these fields. A value equal to the default is left out silently."""

    fields: tuple[str, ...]
    why: str = ""

    def apply(self, draft: Draft) -> None:
        for name in self.fields:
            if name not in draft.fields:
                continue
            value = draft.fields[name]
            if value is None or (name in NEUTRAL and value == NEUTRAL[name]):
                del draft.fields[name]
            else:
                draft.lose(name, self.why or f"takes no {name}")


class OnlyFields(Struct, frozen=True):
    """The recipient accepts only these fields. A value equal to the default is left out silently."""

    fields: frozenset[str]
    where: str = ""

    def apply(self, draft: Draft) -> None:
        others = tuple(name for name in draft.fields if name not in self.fields and name != MODEL)
        for name in others:
            NotTaken((name,), why=f"takes no {name}{self.where}").apply(draft)


class NotThere(Struct, frozen=True):
    """The endpoint does not serve the model. `is_for` says what the model serves, such as embeddings."""

    is_for: str

    def apply(self, draft: Draft) -> None:
        draft.lose(MODEL, f"is for {self.is_for}, and cannot be asked at {draft.endpoint}")


class OnlyValues(Struct, frozen=True):
    """The recipient accepts only these values of a field. The first is the default."""

    field: str
    values: tuple[Any, ...]

    def apply(self, draft: Draft) -> None:
        if self.field in draft.fields and draft.fields[self.field] not in self.values:
            listed = " or ".join(map(str, self.values))
            draft.lose(self.field, f"takes no {self.field} but {listed}")


class Bounded(Struct, frozen=True):
    """orch raises a number below `least` to `least`, and lowers a number above `most` to `most`.

    Meant for bounds of the answer length: a changed bound still limits the cost.
    """

    field: str
    least: float | None = None
    most: float | None = None

    def apply(self, draft: Draft) -> None:
        value = draft.fields.get(self.field)
        if not is_number(value):
            return
        if self.least is not None and value < self.least:
            draft.fields[self.field] = self.least
        if self.most is not None and value > self.most:
            draft.fields[self.field] = self.most


class NotAbove(Struct, frozen=True):
    """The recipient refuses a number above `most`. Lowering the number would change the answers."""

    field: str
    most: float

    def apply(self, draft: Draft) -> None:
        value = draft.fields.get(self.field)
        if is_number(value) and value > self.most:
            draft.lose(self.field, f"takes a {self.field} of at most {self.most:g}")


class NotMore(Struct, frozen=True):
    """The recipient refuses a list of more than `most` values."""

    field: str
    most: int

    def apply(self, draft: Draft) -> None:
        value = draft.fields.get(self.field)
        if isinstance(value, list | tuple) and len(value) > self.most:
            draft.lose(self.field, f"takes at most {self.most} values of {self.field}")


class NotTogether(Struct, frozen=True):
    """The recipient refuses the field `second` if `first` is present."""

    first: str
    second: str

    def apply(self, draft: Draft) -> None:
        if self.first in draft.fields and self.second in draft.fields:
            draft.lose(self.second, f"takes no {self.second} with {self.first}")


class NotForced(Struct, frozen=True):
    """The recipient refuses a `tool_choice` that forces a tool."""

    def apply(self, draft: Draft) -> None:
        choice = draft.fields.get("tool_choice")
        if choice == "required" or isinstance(choice, dict):
            draft.lose("tool_choice", "takes no tool_choice that forces a tool")


def is_unthinking(draft: Draft) -> bool:
    """True if a request turns off thinking, for a model that thinks by default."""
    return bool(named(draft.fields.get("thinking"), "type") == "disabled")


def is_thinking(draft: Draft) -> bool:
    """True if a request leaves thinking on, for a model that thinks by default."""
    return not is_unthinking(draft)


class By(Struct, frozen=True):
    """A change made by a function."""

    function: Callable[[Draft], None]

    def apply(self, draft: Draft) -> None:
        self.function(draft)
