"""A shell that a reader of a page types into."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forking import SHARED
from tests.support.process import PATIENCE, wait_until

FAILED = "A COMMAND OF THE PAGE FAILED"
ORCH = """#!{python} -IS
import json, os, signal, socket, struct, sys
ours, theirs = socket.socketpair()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as parent:
    parent.connect({parent!r})
    asked = {{"module": "orchestrator.cli", "arguments": sys.argv[1:], "env": {{**os.environ}}, "cwd": os.getcwd()}}
    socket.send_fds(parent, [json.dumps(asked).encode()], [0, 1, 2, theirs.fileno()])
    theirs.close()
    process = struct.unpack("i", ours.recv(4))[0]
with open({started!r}, "a") as started:
    print(process, file=started)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(process, number))
status = struct.unpack("i", ours.recv(4))[0]
sys.exit(status if status >= 0 else 128 - status)
"""
"""A command that runs orch in a process that `tests.support.forking` forks. Its own start takes half a second."""


class Shell:
    """A shell in `folder`; `orch` is the one that was installed beside this Python. `more` are its own variables.

    Where tests share a parent of processes, `orch` is forked from it.
    """

    def __init__(self, folder: Path, clock: Path | None = None, **more: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
        env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", **more}
        self._forked = folder / ".bin/forked"
        if (parent := os.environ.get(SHARED)) is not None:
            self._forked.parent.mkdir(exist_ok=True)
            self._forked.touch()
            command = self._forked.with_name("orch")
            command.write_text(ORCH.format(python=sys.executable, parent=parent, started=str(self._forked)))
            command.chmod(0o700)
            env |= {"PATH": f"{command.parent}:{env['PATH']}"}
        if clock is not None:
            env |= {"ORCH_CLOCK": str(clock)}
        self._said = folder / "said.txt"
        self._typed = 0
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._put(f"trap 'echo {FAILED}' ERR\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        for forked in self._forked.read_text().split() if self._forked.exists() else ():
            with suppress(ProcessLookupError):
                os.killpg(int(forked), signal.SIGKILL)

    def type(self, commands: str) -> str:
        """Run commands of which none may fail; what they say."""
        self._typed += 1
        before = len(self._said.read_text())
        end = f"end of block {self._typed}: "
        self._put(f'{commands}\necho "{end}"\n')
        wait_until(lambda: end in self._said.read_text(), 3 * PATIENCE)
        said = self._said.read_text()[before:]
        assert FAILED not in said, said
        return said

    def _put(self, lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(lines.encode())
        self.process.stdin.flush()
