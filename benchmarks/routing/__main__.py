"""`python -m benchmarks.routing` is `python -m benchmarks routing`."""

from __future__ import annotations

import sys

from benchmarks.routing import main

main(sys.argv[1:])
