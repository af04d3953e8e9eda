"""`python -m orchestrator.cli` is `orch`."""

import os
import sys

from orchestrator.cli import failures, main

if __name__ == "__main__":
    try:
        main()
    except SystemExit as ended:
        if ended.code != failures.INTERRUPTED:
            raise
        # A signal in `exec` of a string, as dataclasses use it, would end `python -m` once more, by SIGINT
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(failures.INTERRUPTED)
