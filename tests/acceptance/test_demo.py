"""`orch demo` with a server of one's own, and with an engine that ends."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from orchestrator.server.engines.cpu_launch import ENVIRONMENT
from orchestrator.server.engines.cpu_models import GEMMA, STAMP, TEMPLATE
from orchestrator.server.engines.install import CONSTRAINTS, fingerprint
from orchestrator.server.engines.layout import EngineDir
from tests.conftest import MakeUpstream
from tests.support.cli import Orch

# vLLM answers /health and /v1/models, and ends if its workers do: here at the first question.
ENGINE = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"object": "list", "data": [{"id": "gemma-3-270m", "object": "model"}]}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        print("EngineCore encountered a fatal error.", file=sys.stderr, flush=True)
        os._exit(1)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Engine).serve_forever()
"""


def engine_that_ends(root: Path) -> EngineDir:
    """An engine as it is installed, with a model; its Python serves the stand-in."""
    engine, model = EngineDir.at(root), root / "models" / GEMMA.folder
    for folder in (engine.python.parent, model, engine.logs):
        folder.mkdir(parents=True)
    (root / "engine.py").write_text(ENGINE)
    engine.python.write_text(f'#!/bin/sh\nexec {sys.executable} {root / "engine.py"} "$@"\n')
    engine.python.chmod(0o755)
    engine.stamp.write_text(fingerprint(CONSTRAINTS))
    (model / TEMPLATE).write_text("")
    (model / STAMP).write_text(GEMMA.fingerprint())
    return engine


def test_an_engine_that_ends_ends_the_demo_with_the_end_of_its_log(run_orch: Orch, tmp_path: Path) -> None:
    engine = engine_that_ends(tmp_path / "engine")

    ended = run_orch("demo", "--engine-dir", str(engine.root), cwd=tmp_path)

    assert ended.returncode == 4
    assert "the engine ended with code 1; the end of its log:" in ended.stderr
    assert "EngineCore encountered a fatal error." in ended.stderr
    backend = tomllib.loads((tmp_path / "orch-demo" / "orch.toml").read_text("utf-8"))["backends"]["local"]
    step = ENVIRONMENT["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"]
    assert str(backend["request_timeout"]) == step, "a row may take as long as a step of the engine"


@pytest.mark.long
def test_a_server_that_asks_for_a_key_gets_it(run_orch: Orch, make_upstream: MakeUpstream, tmp_path: Path) -> None:
    upstream = make_upstream(api_key="sk-demo")
    command = "demo", "--upstream", upstream.base_url

    refused = run_orch(*command, cwd=tmp_path)

    assert refused.returncode == 4
    assert "`orch demo` writes orch-demo/orch.toml anew: name the variable with --api-key-env NAME" in refused.stderr
    done = run_orch(*command, "--api-key-env", "DEMO_KEY", cwd=tmp_path, env={"DEMO_KEY": "sk-demo"})
    assert "as the package declares it" in done.stdout, done.stderr
