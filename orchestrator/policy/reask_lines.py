"""Request lines that ask a question again and name the fault of the first answer. Pure."""

from __future__ import annotations

import msgspec

from orchestrator.core.request_lines import written_line
from orchestrator.policy.answer_check import WRONG_CODE
from orchestrator.policy.grounding import NOT_FOUND, TOO_SHORT

MENDABLE = frozenset(
    {
        "truncated", "endless_blanks", "empty_answer", "invalid_json", "schema_mismatch", NOT_FOUND, TOO_SHORT,
        WRONG_CODE,
    }
)  # fmt: skip
"""Faults that a model can correct once it sees them. Refusals and withheld answers are not asked again."""
MOST_ANSWER = 8000
"""Maximum number of characters of the faulty answer that are sent back to the model."""
_NO_ANSWER = "(no answer)"


def mended(line: bytes, answer: str | None, code: str, message: str) -> bytes:
    """Return the task's request line with the answer and its fault appended.

    The question stays unchanged, so that the engine's prefix cache contains it.
    """
    parsed = written_line(line)
    said = (answer or "").strip()[:MOST_ANSWER] or _NO_ANSWER  # roles alternate, as some templates require
    asked = f"Your answer was not accepted: {_fault(code, message)}.\nAnswer the question again, whole and corrected."
    more = [{"role": "assistant", "content": said}, {"role": "user", "content": asked}]
    turns = "input" if "input" in parsed.body else "messages"
    parsed.body[turns] = [*parsed.body[turns], *more]
    return msgspec.json.encode(parsed)


def _fault(code: str, message: str) -> str:
    match code:
        case "truncated":
            return "it was cut off before its end, so it must be shorter"
        case "endless_blanks":
            return "it ended in white space"
        case "empty_answer":
            return "it was empty"
    return message.rstrip(".")
