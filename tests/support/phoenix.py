"""Phoenix, a receiver of traces that many run, as a process in an environment of its own (`make phoenix`).

It writes below one folder and listens on loopback. Where it is not installed, tests that need it skip and say so.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.process import ROOT, wait_until
from tests.support.raycluster import free_port

PYTHON = ROOT / ".phoenix" / "bin" / "python"
needs_phoenix = pytest.mark.skipif(
    not (ROOT / ".phoenix" / "installed").exists(), reason="Phoenix is not installed: make phoenix"
)
_SERVE = """
import os, sys, threading
from phoenix.server import app

class Closed(app.GrpcServer):
    "Its second door, which nobody here uses: no setting keeps it to loopback."
    async def __aenter__(self): pass

def die_with_the_test():
    sys.stdin.read()
    os._exit(0)

app.GrpcServer = Closed
threading.Thread(target=die_with_the_test, daemon=True).start()
sys.argv = ["phoenix", "serve"]
from phoenix.server.main import main
main()
"""
_OFF = {
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
}


@dataclass(frozen=True)
class Phoenix:
    """One that runs at `url`."""

    url: str

    def spans(self) -> list[dict[str, Any]]:
        """What it has of its default project, over its REST API: attributes by their dotted names."""
        return list(_asked(Request(f"{self.url}/v1/projects/default/spans?limit=1000"))["data"])

    def project(self, *fields: str) -> dict[str, Any]:
        """These fields of its default project, over its GraphQL API, which its pages show."""
        query = {"query": f"{{ projects {{ edges {{ node {{ name {' '.join(fields)} }} }} }} }}"}
        headers = {"Content-Type": "application/json"}
        found = _asked(Request(f"{self.url}/graphql", json.dumps(query).encode(), headers))
        assert "errors" not in found, found
        nodes = [one["node"] for one in found["data"]["projects"]["edges"]]
        return next(node for node in nodes if node["name"] == "default")


def _asked(request: Request) -> Any:
    with urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@contextmanager
def phoenix(folder: Path) -> Iterator[Phoenix]:
    """Phoenix with an empty database below `folder`, until the block ends."""
    port = free_port()
    kept = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PHOENIX_WORKING_DIR": str(folder),
    }
    where = {"PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port)}
    with (folder / "phoenix.log").open("wb") as log:
        process = subprocess.Popen(
            [PYTHON, "-c", _SERVE], env=kept | where | _OFF, cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    found = Phoenix(f"http://127.0.0.1:{port}")
    try:
        wait_until(lambda: _listens(found, process))
        yield found
    finally:
        process.kill()
        process.communicate()


def _listens(found: Phoenix, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"Phoenix ended with {process.returncode}; phoenix.log says why"
    try:
        with urlopen(f"{found.url}/healthz", timeout=10) as answer:
            return int(answer.status) == 200
    except URLError:
        return False
