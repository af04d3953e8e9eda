"""Measuring upstreams with the dispatcher that runs batches: one point after another, each at a fixed concurrency.

rows      the rows of a point, when each is let go, and what came of it
point     one point from its first row to its figures
rig       the upstreams and rows that the points of a bench share
gpu       what NVIDIA's library says of this machine's GPUs
"""

from __future__ import annotations
