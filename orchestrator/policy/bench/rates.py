"""From two measurements of an engine to its rates of tokens: prompts apart from answers."""

from __future__ import annotations

from typing import NamedTuple

ASSUMED_WEIGHT = 8.0
"""How much more work a token of an answer is than one of a prompt, where nobody measured it."""
LEAST_SHARE, MOST_SHARE = 0.02, 0.98
"""Bounds of the part of an engine's time that answers take: measurements differ by more than the rest."""


class TokenSpeeds(NamedTuple):
    """Tokens a second of prompts and of answers, each as if the engine did nothing else; None without answers."""

    prefill: float
    decode: float | None


def token_rates(
    rows_per_second: float, input_tokens: float, output_tokens: float, prefill_rows_per_second: float | None
) -> TokenSpeeds:
    """The rates of an engine that does so many rows a second, each with so many tokens.

    `prefill_rows_per_second` is what it did of the same rows with answers of one token, None where nobody knows. What
    whole answers take beyond that is the time of the answers' other tokens.
    """
    if input_tokens <= 0 and output_tokens <= 0:
        return TokenSpeeds(rows_per_second, None)  # it counts no tokens: a row is one
    if output_tokens <= 0:
        return TokenSpeeds(rows_per_second * input_tokens, None)
    if input_tokens <= 0:
        return TokenSpeeds(rows_per_second * output_tokens * ASSUMED_WEIGHT, rows_per_second * output_tokens)
    if prefill_rows_per_second is None or output_tokens <= 1:
        prefill = rows_per_second * (input_tokens + ASSUMED_WEIGHT * output_tokens)
        return TokenSpeeds(prefill, prefill / ASSUMED_WEIGHT)
    # Seconds of a row: of its prompt and one token, and of the rest of its answer.
    rest = max(0.0, 1 / rows_per_second - 1 / prefill_rows_per_second)
    share = rest * rows_per_second * output_tokens / (output_tokens - 1)
    share = min(MOST_SHARE, max(LEAST_SHARE, share))
    return TokenSpeeds(
        rows_per_second * input_tokens / (1 - share),
        rows_per_second * output_tokens / share,
    )
