"""A vLLM engine of our own: install it, give it a model, start it, watch it, stop it.

The engine has its own environment (`.engine/venv`): this package starts it and imports nothing from it.
"""

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.install import install, require_installed
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.models import LocalModel, find_model, make_model
from orchestrator.server.engines.process import Launch, VllmProcess, vllm_launch

__all__ = [
    "EngineDir",
    "EngineUnavailable",
    "Launch",
    "LocalModel",
    "VllmProcess",
    "find_model",
    "install",
    "make_model",
    "require_installed",
    "vllm_launch",
]
