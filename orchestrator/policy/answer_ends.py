"""How answers end: complete, at `max_tokens`, withheld, or with a full context window. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from orchestrator.core.finish_reasons import WINDOW_FULL, end_kind
from orchestrator.policy.answer_text import Answer

_AT_BOUND = frozenset(
    {"length", "max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens", "max_length"}
)
_WITHHELD = frozenset(
    {
        "content_filter", "content_filtered", "guardrail_intervened", "safety", "image_safety", "recitation",
        "prohibited_content", "image_prohibited_content", "image_recitation", "blocklist", "spii", "error_toxic",
        "sensitive",
    }
)  # fmt: skip
"""Finish reasons of answers stopped by a provider's filter.

Bedrock: `content_filtered`, `guardrail_intervened`. Gemini: `safety` to `spii`. Cohere: `ERROR_TOXIC`. Z.ai:
`sensitive`.
"""
_KNOWN = _AT_BOUND | _WITHHELD | {
    "stop", "tool_calls", "function_call", "end_turn", "stop_sequence", "tool_use", "refusal", "complete",
    "completed",
}  # fmt: skip
"""Known finish reasons: of complete answers, and of answers that other rules judge."""

CONTEXT_FULL = "context_full"
"""The code of an answer that ended because the model's context window was full."""
FULL = CONTEXT_FULL, "the answer ended because the model's context window was full"
_ENDLESS_BLANKS = 60
"""Minimum whitespace characters at the end of an answer that show a loop instead of an indentation."""


def is_cut(answer: Answer) -> bool:
    """True if the answer ended at `max_tokens`."""
    return end_kind(answer.finish_reason) in _AT_BOUND


def is_withheld(answer: Answer) -> bool:
    """True if a provider's filter stopped the answer."""
    return end_kind(answer.finish_reason) in _WITHHELD


def is_odd(answer: Answer) -> bool:
    """True if the finish reason is unknown or missing; some servers send `""`, null or `eos`."""
    return answer.data is None and end_kind(answer.finish_reason) not in _KNOWN


def cut_at(text: str, before: str) -> tuple[str, str]:
    """Return `(code, message)` of an answer that reached max_tokens too early.

    `before` completes the message. It is `began` for an answer without text, and `was complete` for incomplete JSON.
    An answer that ends in a long run of whitespace gets its own code, `endless_blanks`.
    """
    blanks = len(text) - len(text.rstrip())
    if blanks >= _ENDLESS_BLANKS:
        told = f"the answer ran into whitespace ({blanks:,} characters) until max_tokens"
        return "endless_blanks", f"{told}; more tokens do not help: change the prompt, the schema or the model"
    what = "it" if before == "began" else "its JSON"
    return "truncated", f"the answer reached max_tokens before {what} {before}; raise max_tokens"


class Bound(NamedTuple):
    """Maximum tokens that a request allowed its answer.

    An answer up to `slack` tokens shorter may have reached the limit too: providers count reasoning in steps.
    """

    tokens: int
    slack: int = 0


def no_bound() -> Bound | None:
    """Return None. The limit is not known."""
    return None


def full_window(
    answer: Answer, output_tokens: int = 0, bound: Callable[[], Bound | None] = no_bound
) -> tuple[str, str] | None:
    """Return `(code, message)` if the answer ended because the context window was full, else None.

    An answer that was cut for its length before it reached its `bound` has filled the context window. Answers with
    several choices are not judged, because only the sum of their tokens is known.
    """
    if end_kind(answer.finish_reason) in WINDOW_FULL:
        return FULL
    if answer.choices > 1 or output_tokens <= 0 or not is_cut(answer):
        return None
    allowed = bound()
    if allowed is None or output_tokens >= allowed.tokens - allowed.slack:
        return None
    return CONTEXT_FULL, (
        f"the answer was cut for its length after {output_tokens:,} tokens, though `max_tokens` allowed "
        f"{allowed.tokens:,}: the model's context window was full"
    )
