"""What is done to an active process: killed, paused, stopped."""

from __future__ import annotations

import os
import signal
import time

from tests.support.cli import Process, kill_group

STOP_SECONDS = 60.0


class Harm:
    """`active` is a process in a session of its own; `since` says when it was harmed (time.monotonic)."""

    active: Process
    since: float

    def kill(self) -> None:
        """SIGKILL."""
        kill_group(self.active)
        self.active.wait()
        self.since = time.monotonic()

    def pause_active(self) -> None:
        """SIGSTOP."""
        os.killpg(self.active.pid, signal.SIGSTOP)
        self.since = time.monotonic()

    def stop_active(self) -> int:
        """SIGTERM; its exit status."""
        self.active.send_signal(signal.SIGTERM)
        status = self.active.wait(STOP_SECONDS)
        self.since = time.monotonic()
        return status

    def woken(self) -> int:
        """SIGCONT; its exit status."""
        os.killpg(self.active.pid, signal.SIGCONT)
        return self.active.wait(STOP_SECONDS)
