"""What to measure of an engine next, and what follows from what was measured. Pure.

sweep    which concurrency next, until the knee is known
halving  which of an engine's settings next, until the best is known
rates    tokens a second of prompts and of answers
verdict  rows an hour, money and the hour of the end
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
