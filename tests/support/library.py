"""The Python interface as its callers have it: in this process, or in one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.cli import CONFIG, Process
from tests.support.forking import fork
from tests.support.process import ROOT


def use_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls of this process find this home, as the command line would."""
    monkeypatch.setenv("ORCH_HOME", str(home))
    monkeypatch.setenv("ORCH_CONFIG", str(home / CONFIG))


def start_script(script: Path, home: Path, env: Mapping[str, str], said: Path, *, is_fresh: bool = False) -> Process:
    """Run a script of a caller in a session of its own: forked, unless a fresh interpreter is wanted."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
    given = {"ORCH_HOME": str(home), "ORCH_CONFIG": str(home / CONFIG), "PYTHONPATH": str(ROOT)}
    with said.open("ab") as output, Path(os.devnull).open("rb") as nothing:
        if not is_fresh:
            files = (nothing.fileno(), output.fileno(), output.fileno())
            return fork(
                "tests.support.caller", [str(script)], files=files, env=kept | given | dict(env), cwd=script.parent
            )
        return subprocess.Popen(
            [sys.executable, str(script)],
            env=kept | given | dict(env),
            cwd=script.parent,
            stdin=nothing,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end_daemon(home: Path) -> None:
    """End the daemon that a submit left behind, if one runs."""
    from orchestrator.daemon.lock import running_daemon
    from orchestrator.settings.home import Home
    from tests.support.process import wait_until

    if (holder := running_daemon(Home(home))) is not None:
        os.kill(holder.pid, signal.SIGTERM)
        wait_until(lambda: running_daemon(Home(home)) is None)
