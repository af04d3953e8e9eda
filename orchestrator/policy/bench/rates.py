"""Token rates of an engine from two measurements: prompts apart from answers."""

from __future__ import annotations

from typing import NamedTuple

ASSUMED_WEIGHT = 8.0
"""Assumed work of an answer token relative to a prompt token, if not measured."""
LEAST_SHARE, MOST_SHARE = 0.02, 0.98
"""Bounds of the part of an engine's time that answers take: measurement errors exceed anything beyond."""


class TokenSpeeds(NamedTuple):
    """Tokens a second of prompts and of answers, each as if the engine did nothing else; None without answers."""

    prefill: float
    decode: float | None


def token_rates(
    rows_per_second: float, input_tokens: float, output_tokens: float, prefill_rows_per_second: float | None
) -> TokenSpeeds:
    """Return the rates of an engine that does this many rows a second, each with these tokens.

    `prefill_rows_per_second` is its rate for the same rows with answers of one token, None if unknown. The extra time
    of whole answers is the time of their other tokens.
    """
    if input_tokens <= 0 and output_tokens <= 0:
        return TokenSpeeds(rows_per_second, None)  # without token counts, a row counts as one token
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
