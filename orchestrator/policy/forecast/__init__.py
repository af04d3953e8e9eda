"""What to expect of answers, batches and engines: learned from what was seen, on priors where little was. Pure.

Every forecast says where it comes from: `assumed`, `from 312 rows`, or both. Times are seconds, rates rows a second.
"""

from __future__ import annotations

from orchestrator.policy.forecast.lengths import Lengths, output_lengths
from orchestrator.policy.forecast.observed_nights import Stint
from orchestrator.policy.forecast.paces import NORMAL, Pace, Wait, beyond, longest, within_hours
from orchestrator.policy.forecast.speeds import BENCH, STATED, Assumed, Speeds, learn, pace
from orchestrator.policy.forecast.turnarounds import SeenBatch, Turnaround, turnaround

__all__ = [
    "BENCH",
    "NORMAL",
    "STATED",
    "Assumed",
    "Lengths",
    "Pace",
    "SeenBatch",
    "Speeds",
    "Stint",
    "Turnaround",
    "Wait",
    "beyond",
    "learn",
    "longest",
    "output_lengths",
    "pace",
    "turnaround",
    "within_hours",
]
