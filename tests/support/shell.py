"""A shell that a reader of a page types into."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.process import PATIENCE, wait_until

FAILED = "A COMMAND OF THE PAGE FAILED"


class Shell:
    """A shell in `folder`; `orch` is the one that was installed beside this Python. `more` are its own variables."""

    def __init__(self, folder: Path, clock: Path | None = None, **more: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
        env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", **more}
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
