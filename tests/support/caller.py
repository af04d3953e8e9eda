"""The process of a caller's script, forked from one that has imported this project: see `forking`."""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Run the script as `python SCRIPT` does."""
    runpy.run_path(sys.argv[1], run_name="__main__")
