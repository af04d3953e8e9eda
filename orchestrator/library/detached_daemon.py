"""Starts the home's daemon in its own session, so that it outlives the process that submits a job."""

from __future__ import annotations

import subprocess
import sys
import time

from orchestrator.core.errors import StorageError, UsageError
from orchestrator.daemon.lock import Holder, running_daemon
from orchestrator.settings.home import Home

LOOK_SECONDS = 0.1
START_SECONDS = 120.0
_started: list[subprocess.Popen[bytes]] = []
"""Daemons that this process started. The process reaps them after their end, but never kills them."""


def daemon_of(home: Home) -> Holder:
    """Return the daemon of a home. Starts `orch up` if none runs.

    If the daemon ends immediately, raises UsageError with the end of its output.
    """
    if (holder := running_daemon(home)) is not None:
        return holder
    said = home.root / "up.log"
    try:
        with said.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", "up", "--quiet"],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise StorageError(f"`orch up` cannot be started: {error.strerror}") from error
    _started[:] = [one for one in _started if one.poll() is None] + [process]
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if (holder := running_daemon(home)) is not None:
            return holder
        if process.poll() is not None:
            break
        time.sleep(LOOK_SECONDS)  # poll, because the daemon cannot wake this process
    last = said.read_bytes()[-2000:].decode(errors="replace").strip()
    raise UsageError(
        f"the job is queued, but `orch up` did not start: {last or 'it said nothing'}",
        hint=f"run `orch up` yourself; {said} has its output",
    )
