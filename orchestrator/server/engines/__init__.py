"""A vLLM engine of our own: install, start, watch and stop it.

The engine has its own environment (`.engine/venv`). This package starts the engine and imports nothing from that
environment.
"""

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.install import install, require_installed
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.process import Launch, VllmProcess

__all__ = [
    "EngineDir",
    "EngineUnavailable",
    "Launch",
    "VllmProcess",
    "install",
    "require_installed",
]
