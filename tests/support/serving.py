"""`orch serve` in a test: a process on a free port."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from tests.support.cli import Orch
from tests.support.process import PATIENCE, wait_until


def serve(
    orch: Orch, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> tuple[subprocess.Popen[bytes], str]:
    """Start `orch serve` on a free port; the process and its URL once it says what a user needs."""
    process = orch.start("serve", "--port", "0", *arguments, env=env)
    return process, url_of(orch, process, timeout)


def url_of(orch: Orch, process: subprocess.Popen[bytes], timeout: float = PATIENCE) -> str:
    """Where it serves, as soon as it says so."""

    def announced() -> str | None:
        found = re.search(r"export OPENAI_BASE_URL=(\S+)/v1\n.*export OPENAI_API_KEY=", orch.output(process))
        assert found or process.poll() is None, orch.output(process)
        return found and found[1]

    return wait_until(announced, timeout)
