"""Runs a command with less than it would have:

    python tests/support/limits.py [--fsize BYTES] [--files N] [--no-override] -- COMMAND...

--fsize caps the size of every file written, which is what a full disk does to a writer. --files is how many files
may be open at once, for good. --no-override takes from
root the power to read and write what its permissions forbid, so that it stands before them as its users do.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import sys
from pathlib import Path

PR_CAPBSET_DROP = 24
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


def prefix(*, fsize: int | None = None, files: int | None = None, no_override: bool = False) -> list[str]:
    """What to put before a command."""
    limits = {"--fsize": fsize, "--files": files}
    given = [word for name, value in limits.items() if value is not None for word in (name, str(value))]
    return [sys.executable, str(Path(__file__).resolve()), *given, *(["--no-override"] if no_override else []), "--"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="limits.py")
    parser.add_argument("--fsize", type=int)
    parser.add_argument("--files", type=int)
    parser.add_argument("--no-override", action="store_true")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if given.fsize is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given.fsize, given.fsize))
    if given.files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given.files, given.files))
    if given.no_override and os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            # What is dropped here is gone for root too, from the next program on.
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                sys.exit(f"limits.py: capability {capability} cannot be dropped: {os.strerror(ctypes.get_errno())}")
    os.execvp(given.command[0], given.command)


if __name__ == "__main__":
    main()
