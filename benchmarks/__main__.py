"""`python -m benchmarks [NAME ...]` runs them all, or those named."""

from __future__ import annotations

import sys

from benchmarks import build, startup

ALL = {"build": build.main, "startup": startup.main}

for name in sys.argv[1:] or ALL:
    ALL[name]()
