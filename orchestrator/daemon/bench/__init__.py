"""`orch bench`: an engine's performance with a job's own rows, and the consequences for a night.

sample    the rows: a part of the job's, by length
target    the engine: already running, or started for the bench
notebook  the measured points, kept over a kill
session   which points are measured, in which order
tuning    the same for an engine's own settings
"""

from __future__ import annotations
