"""Verdict on a measured throughput for a night: rows an hour, dollars, the end time, and the hosted price."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from msgspec import Struct

from orchestrator.core.counts import number_of
from orchestrator.core.durations import HOUR
from orchestrator.core.money import money

THOUSAND = Decimal(1000)
NIGHT = timedelta(hours=20)


class Verdict(Struct, frozen=True):
    """The verdict of a bench at the time `at`.

    `per_1000_usd` is the cost of 1,000 rows on this engine while it works. `hosted_per_1000_usd` is their cost on the
    `hosted` model, or None without a comparison. `overhead_seconds` are paid each night in addition to the work: the
    engine's start, and its idle time before it stops. The engine is cheaper if it works at least `cheaper_from_hours`
    a night. 0 means always; None means never, or no comparison.
    """

    at: datetime
    rows_per_hour: float
    rows: int
    documents: int
    done_at: datetime
    per_1000_usd: Decimal
    hosted: str | None
    hosted_per_1000_usd: Decimal | None
    hosted_estimated: bool
    overhead_seconds: float
    cheaper_from_hours: float | None

    @property
    def sentence(self) -> str:
        what = number_of(self.documents, "document") if self.documents else number_of(self.rows, "row")
        told = [f"{self.rows_per_hour:,.0f} rows an hour", f"{what} done by {_local_time(self.done_at, self.at)}"]
        local = f"{money(self.per_1000_usd)} per 1,000 rows"
        if self.hosted_per_1000_usd is None:
            return "; ".join([*told, local]) + "."
        about = "≈ " if self.hosted_estimated else ""
        told.append(f"{local} against {about}{money(self.hosted_per_1000_usd)} at {self.hosted}")
        if self.cheaper_from_hours is None:
            told.append("hosted is cheaper however long the night is")
        elif self.cheaper_from_hours < 0.05:
            told.append("this engine is cheaper however short the night is")
        else:
            told.append(f"this engine is cheaper from {self.cheaper_from_hours:.1f} h a night")
        return "; ".join(told) + "."

    def to_json(self) -> dict[str, Any]:
        """Return the stable form, documented in docs/reference/json.md."""
        hosted = self.hosted_per_1000_usd
        return {
            "sentence": self.sentence,
            "rows_per_hour": round(self.rows_per_hour),
            "rows": self.rows,
            "documents": self.documents,
            "done_at": self.done_at.isoformat(timespec="seconds"),
            "per_1000_usd": f"{self.per_1000_usd:f}",
            "hosted": self.hosted,
            "hosted_per_1000_usd": None if hosted is None else f"{hosted:f}",
            "hosted_estimated": self.hosted_estimated,
            "overhead_seconds": round(self.overhead_seconds, 1),
            "cheaper_from_hours": None if self.cheaper_from_hours is None else round(self.cheaper_from_hours, 2),
        }


def _local_time(at: datetime, now: datetime) -> str:
    local = at.astimezone()  # with the day if the time alone would be ambiguous
    return f"{local:%H:%M}" if at - now < NIGHT else f"{local:%a %Y-%m-%d %H:%M}"


def verdict(
    *,
    rows_per_second: float,
    rows: int,
    documents: int,
    cost_per_hour: Decimal,
    start_seconds: float,
    idle_seconds: float,
    hosted: tuple[str, Decimal, bool] | None,
    now: datetime,
) -> Verdict:
    """Return the verdict on a measured throughput.

    `cost_per_hour` is for all engines that together reach `rows_per_second`. `hosted` is a model, the price of a row
    in dollars, and whether the price is an estimate. Each night also pays for the engine's start and its idle time
    before it stops.
    """
    per_hour = rows_per_second * HOUR
    per_row = cost_per_hour / Decimal(repr(per_hour))
    overhead = start_seconds + idle_seconds
    name, hosted_row, is_estimated = hosted or (None, None, False)
    cheaper = None
    if hosted_row is not None:
        saved = Decimal(repr(per_hour)) * hosted_row - cost_per_hour
        if saved > 0:
            cheaper = float(cost_per_hour * Decimal(repr(overhead / HOUR)) / saved)
    return Verdict(
        at=now,
        rows_per_hour=per_hour,
        rows=rows,
        documents=documents,
        done_at=now + timedelta(seconds=start_seconds + rows / rows_per_second),
        per_1000_usd=(per_row * THOUSAND).quantize(Decimal("0.000001")),
        hosted=name,
        hosted_per_1000_usd=None if hosted_row is None else (hosted_row * THOUSAND).quantize(Decimal("0.000001")),
        hosted_estimated=is_estimated,
        overhead_seconds=overhead,
        cheaper_from_hours=cheaper,
    )


ASSUMED_WEIGHT = 8.0
"""Assumed work of an answer token relative to a prompt token, used if no measurement exists."""
LEAST_SHARE, MOST_SHARE = 0.02, 0.98
"""Bounds for the share of an engine's time spent on answers. Values outside are measurement errors."""


class TokenSpeeds(NamedTuple):
    """Prompt and answer tokens per second, each as if the engine did nothing else; None without answers."""

    prefill: float
    decode: float | None


def token_rates(
    rows_per_second: float, input_tokens: float, output_tokens: float, prefill_rows_per_second: float | None
) -> TokenSpeeds:
    """Return the token rates of an engine that processes `rows_per_second` rows with these tokens each.

    `prefill_rows_per_second` is the rate of the same rows with one-token answers, None if unknown. The remaining time
    goes to the other answer tokens.
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
    # Seconds per row for the rest of the answer: the total minus the time for prompt and first token.
    rest = max(0.0, 1 / rows_per_second - 1 / prefill_rows_per_second)
    share = rest * rows_per_second * output_tokens / (output_tokens - 1)
    share = min(MOST_SHARE, max(LEAST_SHARE, share))
    return TokenSpeeds(
        rows_per_second * input_tokens / (1 - share),
        rows_per_second * output_tokens / share,
    )
