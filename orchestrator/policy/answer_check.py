"""Whether an answer is what its task asked for: not empty, and where there is a schema, JSON that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.core import schemas, wire
from orchestrator.policy.answer_text import Answer


class OutputCheck:
    """What the answers to a task must be: not empty, and where the task has a schema, JSON that fits it."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        self._check = None if schema is None else schemas.SchemaCheck(schema)

    def problem(self, answer: Answer) -> tuple[str, str] | None:
        """`(code, message)` of what is wrong with an answer, or None; the codes are in `row_errors.BAD_ANSWERS`.

        Text without a schema that ended at `max_tokens` is an answer: its length may be just what was asked for.
        """
        if answer.refusal:
            return "refusal", f"the model refused: {answer.refusal}"
        if answer.text is None or not answer.text.strip():
            if answer.has_other:
                return None
            if answer.finish_reason == "length":
                return "truncated", "the answer reached max_tokens before it began; raise max_tokens"
            if answer.finish_reason == "content_filter":
                return "content_filter", "the provider's content filter withheld the answer"
            return "empty_answer", "the model returned an empty answer"
        if self._check is None:
            return _WITHHELD if answer.finish_reason == "content_filter" else None
        try:
            value = msgspec.json.decode(answer.text)
        except wire.JSON_ERRORS as error:
            if answer.finish_reason == "length":
                return "truncated", "the answer reached max_tokens before its JSON was complete; raise max_tokens"
            if answer.finish_reason == "content_filter":
                return _WITHHELD
            return "invalid_json", f"the answer is not JSON: {error}"
        wrong = self._check.problem(value, len(answer.text))
        return None if wrong is None else ("schema_mismatch", wrong)

    @property
    def parses(self) -> bool:
        """Whether answers are JSON."""
        return self._check is not None


_WITHHELD = "content_filter", "the provider's content filter withheld the rest of the answer"
