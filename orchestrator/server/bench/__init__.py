"""Measuring upstreams with the dispatcher that runs batches: one trial after another, each at a fixed concurrency.

rows      the rows of a trial, when each is let go, and what came of it
trial     one trial from its first row to its figures
rig       the upstreams and rows that the trials of a bench share
gpu       what NVIDIA's library says of this machine's GPUs
"""

from __future__ import annotations
