"""`orch demo` with a server of one's own."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MakeUpstream
from tests.support.cli import Orch


def test_a_server_that_asks_for_a_key_gets_it(run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream(api_key="sk-demo")
    command = "demo", "--upstream", upstream.base_url

    refused = run_orch(*command, cwd=tmp_path)

    assert refused.returncode == 4
    assert "`orch demo` writes orch-demo/orch.toml anew: name the variable with --api-key-env NAME" in refused.stderr
    done = run_orch(*command, "--api-key-env", "DEMO_KEY", cwd=tmp_path, env={"DEMO_KEY": "sk-demo"})
    assert "as the package declares it" in done.stdout, done.stderr
