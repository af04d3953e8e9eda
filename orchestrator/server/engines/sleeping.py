"""vLLM's sleep mode: an engine frees its GPU memory and keeps its process. After waking, it must answer as before.

The endpoints exist only under VLLM_SERVER_DEV_MODE, on loopback, and are never passed through. Level 1 keeps the
weights in host memory. After level 2, an engine must load its weights again, or its answers are nonsense.
"""

from __future__ import annotations

import http.client
import json
from typing import Any

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.process import HOST

ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1"}
OPTIONS = ("--enable-sleep-mode",)
SECONDS = 300.0
FREED_SHARE = 0.5
"""Minimum share of an engine's GPU memory that must become free while it sleeps."""
QUESTION = {
    "prompt": "One, two, three, four, five, six, seven, eight,",
    "max_tokens": 16,
    "temperature": 0,
    "seed": 7,
    "ignore_eos": True,
}


def fall_asleep(port: int) -> None:
    """Free the GPU memory of an engine that has no requests. Raises EngineUnavailable."""
    _ask(port, "POST", "/sleep?level=1&mode=wait")
    if not _is_sleeping(port):
        raise EngineUnavailable("the engine was put to sleep, but is awake", hint=None)


def wake_up(port: int) -> None:
    """Load a sleeping engine back into GPU memory. Raises EngineUnavailable."""
    _ask(port, "POST", "/wake_up")
    if _is_sleeping(port):
        raise EngineUnavailable("the engine was woken, but is asleep", hint=None)


def known_answer(port: int, model: str) -> str:
    """Return the engine's greedy answer to a fixed question. Raises EngineUnavailable."""
    body = json.dumps({"model": model, **QUESTION}).encode()
    answer = _ask(port, "POST", "/v1/completions", body)
    try:
        return str(answer["choices"][0]["text"])
    except (KeyError, IndexError, TypeError) as error:
        raise EngineUnavailable("the engine gave no answer to a plain completion", hint=None) from error


def _is_sleeping(port: int) -> bool:
    found = _ask(port, "GET", "/is_sleeping")
    return isinstance(found, dict) and found.get("is_sleeping") is True


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> Any:
    connection = http.client.HTTPConnection(HOST, port, timeout=SECONDS)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        content = response.read(1 << 20)
        if response.status != http.HTTPStatus.OK:
            raise EngineUnavailable(f"the engine answers {response.status} to {path.partition('?')[0]}", hint=None)
        return json.loads(content) if content.strip() else None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EngineUnavailable(f"the engine does not answer {path.partition('?')[0]}: {error}", hint=None) from error
    finally:
        connection.close()
