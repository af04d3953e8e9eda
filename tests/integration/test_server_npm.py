"""The official openai npm package drives the server end to end over TCP: files, uploads, batches, errors."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.server.settings import Settings
from tests.contract.conftest import over_tcp
from tests.support.process import upstreams

NPM = Path(__file__).resolve().parents[1] / "npm"
STEPS = 13


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("npm")
    with upstreams(folder) as make:
        upstream = make(model="test-model")
        with over_tcp(folder, Settings(upstreams=(upstream.base_url,), retry_delay=0.02)) as found:
            yield f"{found}/v1"


# The newest release, and the last one of the major version before it: many programs stay there.
@pytest.mark.thinned(2)
@pytest.mark.parametrize("package", ["openai", "openai-6"])
def test_the_npm_package_drives_the_server(url: str, package: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed (apt-get install nodejs npm): the openai npm package is not tested")
    if not (NPM / "node_modules" / package / "package.json").is_file():
        pytest.skip(f"the npm package is not installed: npm install --prefix {NPM}")
    done = subprocess.run(
        [node, "batches.mjs", package, url],
        cwd=NPM,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"after {done.stdout}\n{done.stderr}"
    assert len(done.stdout.splitlines()) == STEPS, done.stdout
