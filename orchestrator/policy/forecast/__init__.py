"""Forecasts of answer lengths, batch turnarounds and engine speeds. Pure functions.

Each forecast combines observations with a prior, whose weight falls as observations accumulate. Each forecast names
its source: `assumed`, `from 312 rows`, or both. Times are in seconds, rates in rows a second.
"""

from __future__ import annotations

from orchestrator.policy.forecast.lengths import Lengths, output_lengths
from orchestrator.policy.forecast.observed_nights import OUTAGE_LEVEL, Stint, night_of
from orchestrator.policy.forecast.paces import NORMAL, Pace, Wait, exceedance, wait_quantile, within_hours
from orchestrator.policy.forecast.speeds import BENCH, STATED, Assumed, Speeds, learn, pace
from orchestrator.policy.forecast.turnarounds import SeenBatch, Turnaround, turnaround

__all__ = [
    "BENCH",
    "NORMAL",
    "OUTAGE_LEVEL",
    "STATED",
    "Assumed",
    "Lengths",
    "Pace",
    "SeenBatch",
    "Speeds",
    "Stint",
    "Turnaround",
    "Wait",
    "exceedance",
    "learn",
    "night_of",
    "output_lengths",
    "pace",
    "turnaround",
    "wait_quantile",
    "within_hours",
]
