"""Ways to ask a recipient for JSON: with a schema, as any JSON, or in the prompt only. Pure.

The prompt always contains the word JSON, because servers refuse `json_object` without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.batch_api import RESPONSES
from orchestrator.policy.dialect.draft import Draft, Messages, named
from orchestrator.policy.dialect.recipient import LOCAL, Structured
from orchestrator.policy.dialect.strict_schemas import has_limits, strict_schema

FIELD = "response_format"
FIELDS = frozenset({FIELD, "text"})
"""Fields that ask for JSON: `response_format` in chat completions, `text` in the Responses API."""
_TUNED = "ft:"
"""Prefix of OpenAI's fine-tuned models. Their strict mode accepts no limits, patterns or formats."""


def schema_of(draft: Draft) -> Mapping[str, Any] | None:
    """Return the `json_schema` of a chat completion's body (name, schema and strictness), or None."""
    asked = draft.fields.get(FIELD)
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        return None
    schema = asked.get("json_schema")
    return schema if isinstance(schema, dict) and isinstance(schema.get("schema"), dict) else None


def ask_for(way: Structured, draft: Draft) -> None:
    """Change a body to ask for its schema in the given way."""
    if draft.endpoint == RESPONSES:
        _ask_responses(way, draft)
        return
    asked = schema_of(draft)
    if asked is None or way is Structured.JSON_SCHEMA:
        return
    if way is Structured.NONE or not _is_object(asked["schema"]):
        del draft.fields[FIELD]
    elif draft.recipient.provider == LOCAL:
        # llama.cpp enforces a schema under this key; other local servers ignore it.
        draft.fields[FIELD] = {"type": "json_object", "schema": asked["schema"]}
    else:
        draft.fields[FIELD] = {"type": "json_object"}
    draft.edits.append(lambda messages: _with_instruction(messages, asked["schema"]))


def _ask_responses(way: Structured, draft: Draft) -> None:
    text = draft.fields.get("text")
    asked = named(text, "format")
    if not isinstance(text, dict) or named(asked, "type") != "json_schema" or way is Structured.JSON_SCHEMA:
        return
    schema = asked["schema"]
    is_any_json = way is Structured.JSON_OBJECT and _is_object(schema)
    draft.fields["text"] = {**text, "format": {"type": "json_object" if is_any_json else "text"}}
    draft.edits.append(lambda messages: _with_instruction(messages, schema))


def ask_in_prompt(draft: Draft) -> None:
    """Ask for JSON in the prompt only."""
    ask_for(Structured.NONE, draft)


def ask_for_an_object(draft: Draft) -> None:
    """Ask for any JSON, with the schema in the prompt."""
    ask_for(Structured.JSON_OBJECT, draft)


def ask_strictly(draft: Draft, *, limits: bool = True) -> None:
    """Convert the schema to its strict form. A schema without a strict form is sent but not enforced.

    A schema that is not an object goes only into the prompt, because providers refuse it in either form.
    """
    asked = schema_of(draft)
    if asked is None or asked.get("strict") is not True:
        return
    strict = strict_schema(asked["schema"], limits=limits and not draft.model.startswith(_TUNED))
    if strict is None and not _is_object(asked["schema"]):
        ask_in_prompt(draft)
        return
    strict_format = {**asked, "schema": asked["schema"] if strict is None else strict, "strict": strict is not None}
    draft.fields[FIELD] = {"type": "json_schema", "json_schema": strict_format}


def ask_strictly_without_limits(draft: Draft) -> None:
    """Convert the schema to its strict form, for a recipient that refuses bounds, patterns and formats."""
    ask_strictly(draft, limits=False)


def ask_strictly_or_for_an_object(draft: Draft) -> None:
    """Convert the schema to its strict form, for a recipient that refuses limits in any schema.

    If a schema has limits but no strict form, ask for any JSON and put the schema in the prompt.
    """
    asked = schema_of(draft)
    if asked is not None and strict_schema(asked["schema"], limits=False) is None and has_limits(asked["schema"]):
        ask_for_an_object(draft)
    else:
        ask_strictly_without_limits(draft)


def ask_loosely(draft: Draft) -> None:
    """Send the schema without enforcing it."""
    asked = schema_of(draft)
    if asked is not None:
        draft.fields[FIELD] = {"type": "json_schema", "json_schema": {**asked, "strict": False}}


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and "anyOf" not in schema and "oneOf" not in schema


def _with_instruction(messages: Messages, schema: Mapping[str, Any]) -> Messages:
    schema_text = json.dumps(schema, ensure_ascii=False)
    return with_last_words(
        messages, f"Answer with JSON that fits this JSON Schema, and with nothing else:\n{schema_text}"
    )


def with_last_words(messages: Messages, words: str) -> Messages:
    """Append a paragraph to the last message."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*before, {**last, "content": f"{content}\n\n{words}"}]
    parts = list(content or [])
    kind = "input_text" if any(str(named(part, "type")).startswith("input_") for part in parts) else "text"
    return [*before, {**last, "content": [*parts, {"type": kind, "text": words}]}]
