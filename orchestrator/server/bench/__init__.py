"""Measures upstreams with the dispatcher that runs batches, point by point, each at a fixed concurrency.

rows      the rows of a point, when each is sent, and how it ended point     one point, from its first row to its
figures rig       the upstreams and rows that the points of a bench share gpu       the memory of this machine's GPUs,
from NVIDIA's library
"""

from __future__ import annotations
