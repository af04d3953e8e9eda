"""Translates chat completions to Vertex AI's batch requests: Gemini's, limited to the fields that its import accepts.
Pure.

Google's import turns every field name into a column. The whole job fails if a name cannot be a column, an object has
no fields, or nesting is too deep.

Sources: googleapis/python-genai#2123 and OpenRouter's published notes on these failures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.backends.gemini import requests as gemini
from orchestrator.core.errors import InputError
from orchestrator.policy.dialect.plain_schemas import plain_schema

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")
_DEEPEST = 15
SPOKEN = ("contents", "systemInstruction")
"""The fields of a request that hold the conversation."""
_FIELDS = {"contents": "messages", "tools": "tools", "generationConfig": "response_format"}
Json = dict[str, Any]


def translate(body: Mapping[str, Any]) -> Json:
    """Return a request of `generateContent`. Raises InputError for a field without a counterpart."""
    if body.get("cachedContent") is not None:
        raise InputError("batches take no explicit cache", field="cachedContent")
    request = gemini.translate(body)
    declared = [one for tool in request.get("tools", ()) for one in tool["functionDeclarations"]]
    with_schemas = [("responseJsonSchema", request.get("generationConfig", {}), "response_format")]
    for name, holder, field in [*with_schemas, *(("parametersJsonSchema", one, "tools") for one in declared)]:
        if isinstance(schema := holder.pop(name, None), dict) and (plain := plain_schema(schema, field)):
            holder[name] = plain
    for part in (part for turn in request["contents"] for part in turn["parts"]):
        if part.get("functionCall", {}).get("args") == {}:
            del part["functionCall"]["args"]
    for name, value in request.items():
        if (problem := next(_problems(value, 2), None)) is not None:
            raise InputError(f"cannot be imported by Vertex AI: {problem}", field=_FIELDS.get(name, name))
    return request


def _problems(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _problems(one, depth)
    elif isinstance(value, dict):
        if not value:
            yield "it has an object without fields"
        if depth > _DEEPEST:
            yield f"it has more than {_DEEPEST} levels"
        for name, one in value.items():
            if not _COLUMN.fullmatch(name):
                yield f"it has the name {name!r}"
            yield from _problems(one, depth + 1)
