"""Three `orch serve` with one replica, each harmed in any way at any time; whatever ends is started again."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.support.cli import Orch, Process, kill_group
from tests.support.process import Upstream

NAMES = ("a", "b", "c")
STOP_SECONDS = 60.0


class Several:
    """`harm` one of them, as often as you like, and `heal` in the end; `active` says where the work is done."""

    def __init__(self, orch: Orch, upstream: Upstream, folder: Path, replica: str, dice: random.Random) -> None:
        self._orch = orch
        self._folder = folder
        self._given = ("--upstream", upstream.base_url, "--replica", replica)
        self._dice = dice
        self._paused: set[str] = set()
        self._processes: dict[str, Process] = {}
        self.harms: Counter[str] = Counter()
        for name in NAMES:
            self._start(name)

    def _start(self, name: str) -> None:
        folder = str(self._folder / name)
        self._processes[name] = self._orch.start("serve", "--port", "0", *self._given, "--dir", folder)

    def active(self) -> str | None:
        """The URL of the active one, None while there is none."""
        return self._url_of(self._active_name())

    def _active_name(self) -> str | None:
        return next((name for name in NAMES if name not in self._paused and self.told(name).get("active")), None)

    def told(self, name: str) -> dict[str, Any]:
        """What a server says of its replica; nothing where it is not active."""
        url = self._url_of(name)
        if url is not None and self._processes[name].poll() is None:
            with suppress(OSError), urlopen(f"{url}/health", timeout=3) as answer:
                found: dict[str, Any] = json.load(answer)["replica"]
                return found
        return {}

    def _url_of(self, name: str | None) -> str | None:
        said = "" if name is None else self._orch.output(self._processes[name])
        found = re.search(r"export OPENAI_BASE_URL=(\S+)/v1\n", said)
        return None if found is None else found[1]

    def harm(self) -> None:
        """Kill one with or without its folder, pause it, or stop it: the active one more often than another."""
        name = (self._active_name() if self._dice.random() < 0.7 else None) or self._dice.choice(NAMES)
        what = self._dice.choice(["kill", "lose", "pause", "stop"])
        process = self._processes[name]
        if what == "pause" and process.poll() is None and len(self._paused) < 2:
            os.kill(process.pid, signal.SIGSTOP)
            self._paused.add(name)
        elif what == "stop" and name not in self._paused:
            process.terminate()
            process.wait(STOP_SECONDS)
        elif what in ("kill", "lose"):
            kill_group(process)
            process.wait()
            self._paused.discard(name)
            if what == "lose":
                shutil.rmtree(self._folder / name, ignore_errors=True)
        self.harms[what] += 1
        if self._dice.random() < 0.3:
            self._wake()
        self._start_ended()

    def heal(self) -> None:
        """Nobody is paused or dead any more."""
        self._wake()
        self._start_ended()

    def _wake(self) -> None:
        for name in self._paused:
            os.kill(self._processes[name].pid, signal.SIGCONT)
        self._paused.clear()

    def _start_ended(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                # It ended as it was asked to, was killed, or was superseded.
                assert process.poll() in (0, 4, -signal.SIGKILL), self._orch.output(process)
                self._start(name)
