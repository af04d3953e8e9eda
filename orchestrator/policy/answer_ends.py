"""Ends of answers that are not complete: at `max_tokens`, or where the context window was full. Pure."""

from __future__ import annotations

from orchestrator.core.unfinished import WINDOW_FULL
from orchestrator.policy.answer_text import Answer

_AT_BOUND = frozenset({"length", "max_tokens", "max_output_tokens"})

CONTEXT_FULL = "context_full"
"""The code of an answer that ended because the model's context window was full."""
_FULL = CONTEXT_FULL, "the answer ended because the model's context window was full"


def is_cut(answer: Answer) -> bool:
    """True if the answer ended at `max_tokens`."""
    return (answer.finish_reason or "").lower() in _AT_BOUND


def full_window(answer: Answer) -> tuple[str, str] | None:
    """`(code, message)` if the answer ended because the context window was full, else None."""
    return _FULL if (answer.finish_reason or "").lower() in WINDOW_FULL else None
