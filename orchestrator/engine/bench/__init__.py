"""`orch bench`: what an engine does with a job's own rows, and what follows from it for a night.

sample    the rows: a part of the job's, by length
target    the engine: one that runs, or one that is started for it
notebook  the points that were measured, kept over a kill
session   which points are measured, in which order
tuning    the same for an engine's own settings
"""

from __future__ import annotations
