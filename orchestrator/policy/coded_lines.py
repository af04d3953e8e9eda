"""Row codes in request lines: the property in the schema, and the code at the end of the prompt. Pure.

A row code is derived from the job's name and the row's id. The model must repeat the code, which shows that the
answer belongs to the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from orchestrator.core import row_codes
from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.request_lines import raw_line
from orchestrator.policy import answer_json
from orchestrator.policy.answer_text import Answer
from orchestrator.policy.dialect.structured import with_last_words

MOST_BYTES = 300
"""Maximum bytes by which a code lengthens a line. A schema stated in the prompt names the property too."""


def with_property(line: bytes) -> bytes:
    """Return a task's request line with the code's property added to its schema."""
    parsed = raw_line(line)
    for name in ("response_format", "text"):
        if name in parsed.body:
            parsed.body[name] = msgspec.Raw(_with_property(bytes(parsed.body[name])))
    return msgspec.json.encode(parsed)


@lru_cache(maxsize=64)
def _with_property(raw: bytes) -> bytes:
    """Return `response_format` or `text` with the property. Cached, because all lines of a task share this field."""
    asked = msgspec.json.decode(raw)
    holder = asked.get("json_schema") or asked.get("format") or {}
    if isinstance(holder.get("schema"), dict):
        holder["schema"] = row_codes.with_property(holder["schema"])
    return msgspec.json.encode(asked)


def with_code(line: bytes, job_name: str) -> bytes:
    """Return a request line, in any dialect, with its row's code at the end of the prompt."""
    parsed = raw_line(line)
    code = row_codes.code_of(job_name, parsed.custom_id)
    asked = next(name for name in ("messages", "input") if name in parsed.body)
    messages = with_last_words(msgspec.json.decode(parsed.body[asked]), row_codes.instruction(code))
    parsed.body[asked] = msgspec.Raw(msgspec.json.encode(messages))
    return msgspec.json.encode(parsed)


def code_in(answer: Answer) -> str | None:
    """Return the code in an answer, even if the answer does not fit its schema. None if it has no code."""
    return next((code for said in (answer.text, *reversed(answer.messages)) if (code := _code_in(said))), None)


def bare_text(text: str, schema: Mapping[str, Any] | None) -> str:
    """Return an answer's text without the code, unless the schema asks for the code."""
    value = _value_in(text)
    bare = row_codes.without_code(value, schema)
    return text if bare is value else msgspec.json.encode(bare).decode()


def _value_in(text: str | None) -> Any:
    if text is None or row_codes.PROPERTY not in text:
        return None
    try:
        return msgspec.json.decode(text)
    except JSON_ERRORS:
        with suppress(answer_json.NotOneValue):
            return answer_json.value_in(text)
    return None


def _code_in(text: str | None) -> str | None:
    value = _value_in(text)
    code = value.get(row_codes.PROPERTY) if isinstance(value, dict) else None
    return code.strip().lower() if isinstance(code, str) else None
