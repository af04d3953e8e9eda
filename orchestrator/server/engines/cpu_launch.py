"""The command that serves a model with the CPU engine."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing

from orchestrator.server.engines.cpu_models import LocalModel
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.process import COMMON_OPTIONS, CPU_OPTIONS, HOST, Launch

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    # By default vLLM ends itself if a step takes longer than 300 s. A busy CPU needs longer.
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "3600",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def vllm_launch(
    engine: EngineDir,
    model: LocalModel,
    *,
    port: int | None = None,
    served_name: str | None = None,
    extra: Sequence[str] = (),
) -> Launch:
    """Return the command that runs vLLM for `model`. `extra` are further vLLM options, which override the options set
    by orch.
    """
    name = served_name or model.name
    port = port or free_port()
    command = (
        *(str(engine.python), "-P", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model.path), "--served-model-name", name),
        *("--host", HOST, "--port", str(port)),
        *("--max-model-len", str(model.max_model_len), "--chat-template", str(model.chat_template)),
        *(*COMMON_OPTIONS, *CPU_OPTIONS, *extra),
    )
    return Launch(command, port, name, engine_environment(engine, os.environ))


def engine_environment(engine: EngineDir, ours: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without keys, and without variables that would mislead the engine."""
    kept = {
        name: value
        for name, value in ours.items()
        if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"} and not name.endswith("_API_KEY")
    }
    defaults = {name: kept.get(name, value) for name, value in ENVIRONMENT.items()}
    return {**kept, **defaults, **engine.variables(kept)}


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
