"""Request lines in the dialect of a model at a recipient. Pure.

Lines of one task differ only in their messages, so the other fields are converted once for all lines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import CHAT, EMBEDDINGS, NO_BODY, RESPONSES
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.refused_fields import SYSTEM
from orchestrator.core.request_lines import WrittenLine, raw_line
from orchestrator.policy.dialect import structured
from orchestrator.policy.dialect.draft import Draft, Loss, Messages, system_into_question
from orchestrator.policy.dialect.openai_transforms import to_responses
from orchestrator.policy.dialect.recipient import OwnRule, Recipient, Structured, TableLine
from orchestrator.policy.dialect.rules import Bounded, NotAbove, NotTaken, Renamed
from orchestrator.policy.dialect.rules_by_model import RULES

_CONTENT_FIELDS = ("messages", "input", "prompt")
_BOUNDS = frozenset({"max_completion_tokens", "max_output_tokens"})
_CHAT_BOUNDS = ("max_tokens", "max_completion_tokens")
_RESPONSES_BOUNDS = ("max_output_tokens",)
_GRAMMARS = frozenset({"structured_outputs", "grammar", "json_schema", "regex", "ebnf"})
"""Fields of vLLM, llama.cpp and SGLang that constrain an answer's form. The servers refuse or ignore a second
constraint.
"""
_REPLACING = _BOUNDS | _GRAMMARS
CACHE_SIZE = 256
"""Maximum number of conversions that a dialect caches, one per set of fields."""


class _PlainBody(msgspec.Struct):
    model: msgspec.Raw = NO_BODY
    max_tokens: msgspec.Raw = NO_BODY
    max_completion_tokens: msgspec.Raw = NO_BODY
    max_output_tokens: msgspec.Raw = NO_BODY


class _PlainLine(msgspec.Struct):
    body: _PlainBody


_decode_plain_line = json_decoder(_PlainLine).decode
_encode = msgspec.json.encode


class _Conversion(Struct, frozen=True):
    """Converted fields (None if no field changes), the endpoint, and edits of the messages."""

    endpoint: str
    fields: Mapping[str, msgspec.Raw] | None
    edits: Sequence[Callable[[Messages], Messages]]


class Dialect:
    """Converts requests for the endpoint `asked_at` into requests that a model at a recipient accepts.

    `name` is the recipient's name for the model. `refused` names the fields that the model has refused.
    """

    def __init__(self, recipient: Recipient, name: str, asked_at: str, refused: frozenset[str] = frozenset()) -> None:
        self.recipient = recipient
        self.name = name
        self.asked_at = asked_at
        self._refused = refused
        self._own = [rule for rule in recipient.rules if rule.holds_for(name)]
        self._like = next((rule.like for rule in self._own if rule.like is not None), name)
        table: tuple[TableLine, ...] = (*RULES, *recipient.table)
        self._rules = [rule for rule in table if rule.holds_for(recipient.provider, self._like)]
        self._is_plain = not (self._own or self._rules or refused or recipient.structured)
        self._model = msgspec.Raw(_encode(name))
        self._conversions: dict[tuple[bool, bool, bytes], _Conversion] = {}

    @property
    def endpoint(self) -> str:
        """Path that the converted requests are sent to."""
        return self._draft({}, drop=True, is_ready=False).endpoint

    def losses(self, body: Mapping[str, Any]) -> tuple[Loss, ...]:
        """Return a loss for each field that the recipient refuses. `body` has the task's spelling, and no
        messages.
        """
        return tuple(self._draft(body, drop=False, is_ready=False).losses)

    def body(self, body: Mapping[str, Any], *, drop: bool = False) -> dict[str, Any]:
        """Return a whole body in this dialect. With `drop`, unsupported fields that may be dropped are left out."""
        asked = next((name for name in _CONTENT_FIELDS if name in body), None)
        draft = self._draft({name: value for name, value in body.items() if name != asked}, drop=drop, is_ready=False)
        if asked is None:
            return draft.fields
        return {**draft.fields, **_edited_content(asked, body[asked], draft.endpoint, draft.edits)}

    def line(self, line: bytes, *, drop: bool = False, is_ready: bool = False) -> bytes:
        """Return a request line in this dialect.

        If `is_ready`, a user wrote the line, and orch changes only the model and the names of fields.
        """
        if self._is_plain and self._is_as_sent(_decode_plain_line(line).body):
            return line
        parsed = raw_line(line)
        body: dict[str, Any] = parsed.body
        if self._is_plain and _REPLACING.isdisjoint(body):
            return self._with_name(line, parsed)
        asked = next((name for name in _CONTENT_FIELDS if name in body), None)
        others = {name: raw for name, raw in body.items() if name not in (asked, "model")}
        conversion = self._convert(others, drop, is_ready)
        if conversion.fields is None and not conversion.edits and conversion.endpoint == self.asked_at:
            return self._with_name(line, parsed)
        fields = others if conversion.fields is None else conversion.fields
        content = {} if asked is None else self._content(asked, body[asked], conversion)
        parsed.body = {"model": self._model, **content, **fields}
        if conversion.endpoint != self.asked_at:
            parsed.url = conversion.endpoint
        return _encode(parsed)

    def _is_as_sent(self, body: _PlainBody) -> bool:
        """True if a line needs no change in a dialect without rules. This holds for most lines, and is cheap to
        check.
        """
        has_old_bound = body.max_tokens is not NO_BODY
        has_new_bound = body.max_completion_tokens is not NO_BODY
        if self.asked_at == RESPONSES:
            is_bound_changed = has_old_bound or has_new_bound
        else:
            is_bound_changed = (has_old_bound and has_new_bound) or body.max_output_tokens is not NO_BODY
        return body.model == self._model and not is_bound_changed

    def _with_name(self, line: bytes, parsed: WrittenLine[dict[str, msgspec.Raw]]) -> bytes:
        if bytes(parsed.body.get("model", b"")) == bytes(self._model):
            return line
        parsed.body["model"] = self._model
        return _encode(parsed)

    def _content(self, name: str, raw: msgspec.Raw, conversion: _Conversion) -> dict[str, Any]:
        if not conversion.edits:
            return {name: raw}
        return _edited_content(name, msgspec.json.decode(raw), conversion.endpoint, conversion.edits)

    def _convert(self, fields: Mapping[str, msgspec.Raw], drop: bool, is_ready: bool) -> _Conversion:
        key = (drop, is_ready, b"\0".join(name.encode() + b"\0" + bytes(raw) for name, raw in fields.items()))
        if (found := self._conversions.get(key)) is not None:
            return found
        before = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
        draft = self._draft(before, drop=drop, is_ready=is_ready)
        after = {
            name: fields[name] if name in before and before[name] == value else msgspec.Raw(_encode(value))
            for name, value in draft.fields.items()
        }
        same = draft.fields == before and [*draft.fields] == [*before]
        found = _Conversion(draft.endpoint, None if same else after, tuple(draft.edits))
        if len(self._conversions) >= CACHE_SIZE:
            self._conversions.clear()
        self._conversions[key] = found
        return found

    def _draft(self, body: Mapping[str, Any], *, drop: bool, is_ready: bool) -> Draft:
        fields = {name: value for name, value in body.items() if name != "model"}
        draft = Draft(fields, self._like, self.recipient, self.asked_at, self.name, drop)
        if not _BOUNDS.isdisjoint(fields):
            _take_own_bound(fields, self.asked_at, is_ready)
        if is_ready:
            for rule in self._rules:
                if isinstance(rule.change, Renamed):
                    rule.apply(draft)
            return draft
        if not _GRAMMARS.isdisjoint(fields):
            _leave_out_schema(fields)  # a grammar in `extra` replaces orch's schema; answers are still checked
        for one in self._own:
            _apply_own(one, draft)
        _ask_in_a_known_way(draft, self._own, self._refused)
        for rule in self._rules:
            rule.apply(draft)
        _leave_out_refused(draft, self._refused)
        return draft


def _take_own_bound(fields: dict[str, Any], endpoint: str, is_ready: bool) -> None:
    """Replace orch's answer bound with the bound in `extra`. The endpoint ignores bounds under another endpoint's
    name.
    """
    if is_ready:
        fields.pop("max_tokens", None)
        return
    ours, own = ("max_output_tokens", _CHAT_BOUNDS) if endpoint == RESPONSES else ("max_tokens", _RESPONSES_BOUNDS)
    for name in own:
        value = fields.pop(name, None)
        if value is not None:
            fields[ours] = value
    if fields.get("max_completion_tokens") is not None:
        fields.pop("max_tokens", None)
    else:
        fields.pop("max_completion_tokens", None)


def _leave_out_schema(fields: dict[str, Any]) -> None:
    fields.pop("response_format", None)
    text = fields.pop("text", None)
    if isinstance(text, dict):
        text = {name: value for name, value in text.items() if name != "format"}
    if text:
        fields["text"] = text


def dialect_of(recipient: Recipient, model: str, endpoint: str, refused: Collection[str] = ()) -> Dialect:
    """Return the dialect of requests to `endpoint` for a model at a recipient.

    `refused` names the fields that this model has refused. `field.part` names a part of a field.
    """
    return Dialect(recipient, model, endpoint, frozenset(refused))


def _edited_content(
    name: str, asked: Any, endpoint: str, edits: Sequence[Callable[[Messages], Messages]]
) -> dict[str, Any]:
    if not edits or not isinstance(asked, list) or not all(isinstance(one, dict) for one in asked):
        return {name: asked}
    for edit in edits:
        asked = edit(asked)
    return {"input" if endpoint == RESPONSES else name: asked}


def _apply_own(rule: OwnRule, draft: Draft) -> None:
    if rule.endpoint == RESPONSES and draft.endpoint == CHAT:
        to_responses(draft)
    name = rule.field
    if name is None:
        return
    if rule.rename is not None:
        draft.rename(name, rule.rename)
    if rule.refuse:
        NotTaken((name,), why=f"takes no {name}, by orch.toml").apply(draft)
    if rule.at_least is not None:
        Bounded(name, least=rule.at_least).apply(draft)
    if rule.at_most is not None:
        bounds = name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        (Bounded(name, most=rule.at_most) if bounds else NotAbove(name, rule.at_most)).apply(draft)


def _ask_in_a_known_way(draft: Draft, own: Sequence[OwnRule], refused: frozenset[str]) -> None:
    notes = next((rule.structured for rule in own if rule.structured is not None), draft.recipient.structured)
    if notes is None and any(name.split(".")[0] in structured.FIELDS for name in refused):
        notes = Structured.JSON_OBJECT
    if notes is Structured.JSON_OBJECT and f"{structured.FIELD}.json_object" in refused:
        notes = Structured.NONE
    if notes is not None:
        structured.ask_for(notes, draft)


def _leave_out_refused(draft: Draft, refused: frozenset[str]) -> None:
    if SYSTEM in refused:
        system_into_question(draft)
    for name in sorted(refused):
        if name not in draft.fields or name in structured.FIELDS:
            continue
        if name == "max_tokens" and draft.endpoint == CHAT:
            draft.rename(name, "max_completion_tokens")
        elif name == "max_completion_tokens" and draft.endpoint == CHAT:
            draft.rename(name, "max_tokens")
        else:
            draft.lose(name, f"has refused {name}")


_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}}
# For each setting of a task, a value that differs from every model's default.
_SETTINGS: dict[str, Any] = {"temperature": 0.5, "top_p": 0.5, "seed": 7, "stop": ["."], "logprobs": True}


def describe(recipient: Recipient, model: str) -> str | None:
    """Describe in one line how a model's requests differ from the task's spelling. Returns None if they do not
    differ.
    """
    dialect = dialect_of(recipient, model, CHAT)
    notes = [] if dialect.endpoint == CHAT else [f"asked at {dialect.endpoint}"]
    if chat_losses := dialect.losses({}):
        at_vectors = dialect_of(recipient, model, EMBEDDINGS).losses({"dimensions": 8})
        sizes = ["takes no dimensions"] if any(loss.field == "dimensions" for loss in at_vectors) else []
        return "; ".join([chat_losses[0].reason, *sizes])
    lost = [name for name, value in _SETTINGS.items() if dialect.losses({name: value})]
    if lost:
        notes.append(f"takes no {', '.join(lost)}")
    bounds = dialect.body({"max_tokens": 100})
    notes += [f"max_tokens is sent as {name}" for name in bounds if name.startswith("max_") and name != "max_tokens"]
    asked = dialect.body({"messages": [{"role": "user", "content": ""}], "response_format": _FORMAT})
    kind = (asked.get("response_format") or (asked.get("text") or {}).get("format") or {}).get("type")
    if kind != "json_schema":
        notes.append("schemas are sent in the prompt")
    return "; ".join(notes) or None
