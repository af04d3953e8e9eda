"""Row codes: a short code at the end of a row's prompt, which the answer must repeat. Pure.

An answer with the code of another row has come back under the wrong key. Codes are derived from rows and need no
storage. No fingerprint and no result for a user contains the code.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

NONCE = "nonce"
"""The value of a task's `check` that asks for row codes."""
PROPERTY = "row_code"
"""The property of an answer that repeats the code."""
_DIGEST_BYTES = 5
_NO_ROOM = frozenset(
    {
        "$ref", "anyOf", "oneOf", "allOf", "not", "if", "const", "enum", "propertyNames", "patternProperties",
        "minProperties", "maxProperties", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords of an object's schema that may forbid an additional property."""


def code_of(job_name: str, custom_id: str) -> str:
    """Return the code of a row: 8 letters and digits, equal in every run of the job.

    The code ignores the case of the id and spaces around it, since providers may change both.
    """
    key = blake2b(job_name.encode(), digest_size=32).digest()
    digest = blake2b(custom_id.strip().casefold().encode(), key=key, digest_size=_DIGEST_BYTES).digest()
    return b32encode(digest).decode().lower()


def problem_with(schema: Mapping[str, Any] | None) -> str | None:
    """Return why answers that fit a schema cannot repeat a code, or None if they can."""
    if schema is None:
        return f"`check: {NONCE}` needs a `schema`, in which the answer gives a code back"
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), Mapping):
        return f"`check: {NONCE}` needs a `schema` of `type: object` with `properties`"
    if taken := sorted(_NO_ROOM & schema.keys()):
        return f"`check: {NONCE}` adds a property to the `schema`, whose `{taken[0]}` may forbid it: leave that out"
    if PROPERTY in schema["properties"]:
        return f"`check: {NONCE}` adds a property `{PROPERTY}`: give the schema's own property another name"
    return None


def with_property(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object's schema with the property for the code added first, as a required property."""
    properties = {PROPERTY: {"type": "string"}, **schema["properties"]}
    return {**schema, "properties": properties, "required": [PROPERTY, *schema.get("required", ())]}


def instruction(code: str) -> str:
    """Return the end of a prompt, which asks the model to repeat the code."""
    return f"Give this code back as `{PROPERTY}`, exactly as it stands here: {code}"


def without_code(value: Any, schema: Mapping[str, Any] | None) -> Any:
    """Return an answer without its code, unless its own schema has a property of that name."""
    if not isinstance(value, dict) or PROPERTY not in value or schema is None:
        return value
    if PROPERTY in (schema.get("properties") or ()):
        return value
    return {name: part for name, part in value.items() if name != PROPERTY}
