"""Entry point of `python -m orchestrator.cli`, the same as `orch`."""

import os
import sys

from orchestrator.cli import main
from orchestrator.cli.terminal import INTERRUPTED


def run_as_module() -> None:
    """Run the command line and exit with its code, even if a signal ends it."""
    try:
        main()
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        # After a signal inside `exec` of a string (dataclasses use it), `python -m` would also kill itself with
        # SIGINT.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    run_as_module()
