"""Decides what to measure on an engine next, and what the measurements mean. Pure.

sweep    the next concurrency, until the knee is known
halving  the next settings of an engine, until the best are known
rates    tokens a second of prompts and of answers
verdict  rows an hour, money and the time of the end
"""

from __future__ import annotations

from orchestrator.policy.bench.halving import Contest, TuneRun, Winner, contest_of, tunings
from orchestrator.policy.bench.rates import token_rates
from orchestrator.policy.bench.sweep import Knee, Measure, NoKnee, SweepPoint, next_step
from orchestrator.policy.bench.verdict import Verdict, verdict

__all__ = [
    "Contest",
    "Knee",
    "Measure",
    "NoKnee",
    "SweepPoint",
    "TuneRun",
    "Verdict",
    "Winner",
    "contest_of",
    "next_step",
    "token_rates",
    "tunings",
    "verdict",
]
