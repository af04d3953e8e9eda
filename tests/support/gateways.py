"""Gateways and servers that nobody here wrote, as processes from environments of their own (`make gateways`).

Each listens on loopback and ends with the block that started it. If an environment is missing, its tests skip and
say so.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.process import ROOT, wait_until
from tests.support.raycluster import free_port

FOLDER = ROOT / ".gateways"
KEY = "sk-gateway-0123456789"
_PRICES = {"input_cost_per_token": 1e-6, "output_cost_per_token": 4e-6}
"""LiteLLM checks no budget for a model that costs nothing."""
START_SECONDS = 300.0
"""LiteLLM imports for half a minute on a busy machine."""


def needs(name: str) -> pytest.MarkDecorator:
    """Skip if the environment of this server is not complete."""
    reason = f"{name} is not installed: make gateways"
    return pytest.mark.skipif(not (FOLDER / name / "installed").exists(), reason=reason)


@dataclass(frozen=True)
class Answer:
    """A status with its body: JSON if the body is JSON, else text."""

    status: int
    body: Any


@dataclass
class Running:
    """A server on loopback. `log` holds its output."""

    root_url: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    def ask(self, path: str, body: object = None, key: str = KEY) -> Answer:
        """POST a body as JSON, or GET without one; refusals are answers too."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(self.root_url + path, data, headers), timeout=60) as answer:
                return Answer(answer.status, _content(answer.read()))
        except HTTPError as refusal:
            return Answer(refusal.code, _content(refusal.read()))

    def listens(self, path: str) -> bool:
        """True as soon as this path answers at all. Fails the test if the server has ended."""
        code = self.process.poll()
        assert code is None, f"the server ended with {code}: {self.log.read_text(errors='replace')[-2000:]}"
        try:
            self.ask(path)
        except (URLError, ConnectionError, TimeoutError):
            return False
        return True

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


def _content(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")


@contextmanager
def server(
    command: Sequence[str | Path], port: int, log: Path, env: Mapping[str, str], ready: str
) -> Iterator[Running]:
    """The process of a server until the block ends, from when `ready` answers."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(part) for part in command], env=env, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    running = Running(f"http://127.0.0.1:{port}", log, process)
    try:
        wait_until(lambda: running.listens(ready), START_SECONDS)
        yield running
    finally:
        running.kill()


def plain_env(folder: Path, name: str) -> dict[str, str]:
    """An environment without the keys and settings of whoever runs the tests."""
    path = f"{FOLDER / name / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}


@contextmanager
def litellm(folder: Path, models: Mapping[str, str], **sections: Any) -> Iterator[Running]:
    """LiteLLM's proxy: each model's name with the base URL of the server behind it.

    `sections` add to its configuration file. `folder` is on its Python path.
    """
    listed = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{name}", "api_base": url, "api_key": "sk-behind", **_PRICES},
        }
        for name, url in models.items()
    ]
    general = {"master_key": KEY, **sections.pop("general_settings", {})}
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": listed, "general_settings": general, **sections}))
    port = free_port()
    env = plain_env(folder, "litellm") | {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "PYTHONPATH": str(folder),
        "NO_PROXY": "127.0.0.1",
    }
    program = FOLDER / "litellm/bin/litellm"
    command = [program, "--config", config, "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
    with server(command, port, folder / "litellm.log", env, "/health/liveliness") as running:
        yield running


class Budget:
    """What is left of the money behind LiteLLM's keys. Its virtual keys need Postgres, so its own error is raised."""

    general: ClassVar = {"custom_auth": "gateway_keys.authenticate", "custom_auth_run_common_checks": True}
    """For `litellm(..., general_settings=Budget.general)`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "left"
        (folder / "gateway_keys.py").write_text(_KEYS)
        self.fill()

    def fill(self) -> None:
        self._file.write_text("1")

    def spend(self) -> None:
        self._file.write_text("0")


_KEYS = """
from pathlib import Path
import litellm
from litellm.proxy._types import UserAPIKeyAuth

async def authenticate(request, api_key):
    if float(Path(__file__).with_name("left").read_text()) <= 0:
        raise litellm.BudgetExceededError(current_cost=10.2, max_budget=10.0)
    return UserAPIKeyAuth(api_key=api_key)
"""


@contextmanager
def aibrix(folder: Path, upstream_url: str) -> Iterator[Running]:
    """AIBrix's batch service with local files, in front of the server at `upstream_url` (its root, without /v1).

    Local files come only with its dry run, which answers with the request. So its rows get AIBrix's own HTTP client.
    """
    port = free_port()
    env = plain_env(folder, "aibrix") | {"STORAGE_LOCAL_PATH": str(folder / "aibrix"), "NO_PROXY": "127.0.0.1"}
    python = FOLDER / "aibrix/bin/python"
    command = [python, "-c", _AIBRIX, upstream_url, "--dry-run", "--host", "127.0.0.1", "--port", str(port)]
    with server(command, port, folder / "aibrix.log", env, "/healthz") as running:
        yield running


_AIBRIX = """
import sys
from aibrix.batch.client import StaticEndpointSource
from aibrix.metadata import app, store

class NoUsers:
    "Its store of users is a Redis server, which no batch needs."
    client = None
    async def ping(self): return True
    async def close(self): pass

url = sys.argv.pop(1)
app.RedisMetadataStore = NoUsers
app.NoopEndpointSource = lambda: StaticEndpointSource(url, capacity=8)
app.main()
"""


@contextmanager
def llamacpp(folder: Path, *options: str) -> Iterator[Running]:
    """The server of llama-cpp-python with Gemma 3 270M, which it calls `gemma`."""
    port = free_port()
    python = FOLDER / "llamacpp/bin/python"
    model = FOLDER / "llamacpp/model.gguf"
    command = [python, "-m", "llama_cpp.server", "--model", model, "--model_alias", "gemma", "--host", "127.0.0.1"]
    options = ("--port", str(port), "--n_ctx", "2048", "--n_threads", "2", "--chat_format", "gemma", *options)
    with server(
        [*command, *options], port, folder / "llamacpp.log", plain_env(folder, "llamacpp"), "/v1/models"
    ) as on:
        yield on


@contextmanager
def aimock(folder: Path, *options: str) -> Iterator[Running]:
    """aimock, which answers each question about a page. `options` are those of its program, such as its chaos."""
    fixtures = folder / "aimock.json"
    page = {"match": {"userMessage": "page"}, "response": {"content": "It says little."}}
    fixtures.write_text(json.dumps({"fixtures": [page]}))
    port = free_port()
    program = FOLDER / "aimock/node_modules/.bin/llmock"
    command = [program, "--port", str(port), "--host", "127.0.0.1", "--fixtures", fixtures, "--log-level", "warn"]
    with server([*command, *options], port, folder / "aimock.log", plain_env(folder, "aimock"), "/v1/models") as on:
        yield on
